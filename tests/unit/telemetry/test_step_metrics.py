"""Figures of steps and of stages."""

from typing import Any

import pytest

from pipeline.messages import DeviceReady
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import Service
from pipeline.runtime.testing import ManualClock
from pipeline.telemetry import StepRecord, Telemetry
from tests.unit.telemetry.test_request_metrics import MS, values

GAUGES = {"requests_running": 4, "requests_waiting": 0, "preemptions_total": 0}


def step(**fields: Any) -> StepRecord:
    defaults: dict[str, Any] = {
        "step_id": 1,
        "planned_ns": 100 * MS,
        "begin_ns": 102 * MS,
        "end_ns": 107 * MS,
        "sampled_ns": 108 * MS,
        "applied_ns": 110 * MS,
        "host_gap_ns": 2 * MS,
        "num_rows": 4,
        "num_prefill_tokens": 30,
        "num_decode_tokens": 3,
        "num_running": 4,
        "num_waiting": 0,
        "num_used_blocks": 5,
        "num_kv_tokens": 15,
        "num_preempted": 0,
    }
    return StepRecord(**(defaults | fields))


def test_steps_are_told_by_device_gap_and_content() -> None:
    telemetry = Telemetry()
    telemetry.opened(DeviceReady(num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=64))
    assert values(telemetry)[("stageline_kv_fragmentation_ratio",)] == 0
    telemetry.journal.step(step())
    telemetry.journal.step(step(host_gap_ns=0, num_prefill_tokens=0))
    assert values(telemetry)[("stageline_kv_fragmentation_ratio",)] == 0, "no block is used any more"
    telemetry.watch(lambda: {"kv_blocks_used": 5, "kv_blocks": 8} | GAUGES)
    seen = values(telemetry)
    assert seen[("stageline_device_busy_seconds_total",)] == pytest.approx(0.01)
    assert seen[("stageline_device_step_seconds_sum",)] == pytest.approx(0.01)
    assert seen[("stageline_device_host_gap_seconds_sum",)] == pytest.approx(0.002)
    assert seen[("stageline_device_host_gap_seconds_bucket", "0.0001")] == 1
    assert seen[("stageline_step_seconds_sum",)] == pytest.approx(0.02)
    assert seen[("stageline_computed_tokens_total", "prefill")] == 30
    assert seen[("stageline_computed_tokens_total", "decode")] == 6
    assert seen[("stageline_step_tokens_sum",)] == 36 and seen[("stageline_step_rows_count",)] == 2
    assert seen[("stageline_kv_fragmentation_ratio",)] == pytest.approx(0.25)


def test_a_link_is_the_data_lane_of_the_stage_it_leads_to() -> None:
    telemetry, clock = Telemetry(), ManualClock()
    inbox: Inbox[int] = Inbox(1, clock)
    telemetry.watch_stage("detokenize", inbox, [Service(), Service()], ("schedule",))
    assert inbox.offer(1) and not inbox.offer(2)
    inbox.post(3)
    seen, link = values(telemetry), "schedule->detokenize"
    assert seen[("stageline_link_depth", link)] == seen[("stageline_link_bound", link)] == 1
    assert seen[("stageline_link_refused_total", link)] == 1
    assert seen[("stageline_inbox_posted_total", "detokenize")] == 1
    assert seen[("stageline_stage_workers", "detokenize")] == 2


def test_workers_of_a_stage_are_shown_as_one() -> None:
    telemetry, services = Telemetry(), [Service(num_errors=1), Service()]
    telemetry.watch_stage("tokenize", Inbox(1), services)
    for service, took_ms in zip(services, (2, 20), strict=True):
        service.begin(100 * MS)
        service.end((100 + took_ms) * MS, num_messages=took_ms)
    seen = values(telemetry)
    assert seen[("stageline_stage_service_seconds_count", "tokenize")] == 2
    assert seen[("stageline_stage_service_seconds_sum", "tokenize")] == pytest.approx(0.022)
    assert seen[("stageline_stage_service_seconds_bucket", "tokenize", "0.0025")] == 1
    assert seen[("stageline_stage_busy_seconds_total", "tokenize")] == pytest.approx(0.022)
    assert seen[("stageline_stage_batch_messages_sum", "tokenize")] == 22
    assert seen[("stageline_stage_errors_total", "tokenize")] == 1
    assert ("stageline_link_depth", "tokenize") not in seen
