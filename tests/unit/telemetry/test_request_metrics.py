"""Figures of requests, under our names, vLLM's and OpenTelemetry's: all from the journal's records."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.messages import SEGMENTS
from pipeline.telemetry import RequestRecord, Telemetry
from pipeline.telemetry.metrics.gen_ai import DURATION_NS, TOKENS, TPOT_NS, TTFT_NS, error_type
from pipeline.telemetry.metrics.requests import tpot
from pipeline.telemetry.metrics.vllm import phases

MS = 1_000_000
TTFT_SEGMENTS = (1, 1, 2, 10, 1, 1, 20, 1, 1, 1, 1, 0, 0)
"""ms: 40 together; 4 before the scheduler, 10 of wait there."""


def record(**fields: Any) -> RequestRecord:
    defaults: dict[str, Any] = {
        "request_id": 1,
        "arrived_ns": 1000 * MS,
        "e2e_ns": 130 * MS,
        "finish": "length",
        "code": "",
        "num_prompt_tokens": 7,
        "num_output_tokens": 10,
        "num_preemptions": 0,
        "ttft_ns": 40 * MS,
        "segments_ns": (10 * MS,) * len(SEGMENTS),
        "ttft_segments_ns": tuple(each * MS for each in TTFT_SEGMENTS),
        "paused_ns": 0,
        "trace_parent": "",
    }
    return RequestRecord(**(defaults | fields))


def rejected(code: str) -> RequestRecord:
    return record(finish="rejected", code=code, ttft_ns=None, segments_ns=(), ttft_segments_ns=())


def values(telemetry: Telemetry) -> dict[tuple[str, ...], float]:
    """Every sample by its name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(telemetry.render().decode())
        for sample in family.samples
    }


def test_what_came_in_is_ended_rejected_or_live() -> None:
    telemetry = Telemetry()
    for _ in range(6):
        telemetry.received()
    telemetry.refused("queue_full")
    for finish in ("length", "stop", "stop", "cancelled"):
        telemetry.journal.request(record(finish=finish))
    telemetry.journal.request(rejected("too_long"))
    seen = values(telemetry)
    assert seen[("stageline_requests_received_total",)] == 6
    assert [
        seen[("stageline_requests_total", reason)] for reason in ("stop", "length", "cancelled", "error")
    ] == [*(2, 1, 1, 0)]
    assert seen[("stageline_rejected_total", "too_long")] == 1
    assert seen[("stageline_refused_total", "queue_full")] == 1
    assert (telemetry.num_live, telemetry.num_refused) == (1, 1)


def test_times_and_tokens_of_requests_with_a_row() -> None:
    telemetry = Telemetry()
    telemetry.journal.request(record())
    telemetry.journal.request(
        record(finish="cancelled", num_output_tokens=0, ttft_ns=None, ttft_segments_ns=())
    )
    telemetry.journal.request(rejected("too_long"))
    seen = values(telemetry)
    assert seen[("stageline_e2e_seconds_count",)] == 2
    assert seen[("stageline_e2e_seconds_sum",)] == pytest.approx(0.26)
    assert seen[("stageline_ttft_seconds_count",)] == 1
    assert seen[("stageline_ttft_seconds_sum",)] == pytest.approx(0.04)
    assert seen[("stageline_tpot_seconds_sum",)] == pytest.approx(0.01)
    assert seen[("stageline_segment_seconds_sum", "execute.service")] == pytest.approx(0.02)
    assert seen[("stageline_tokens_total", "prompt")] == 14
    assert seen[("stageline_tokens_total", "output")] == 10


@pytest.mark.parametrize(("num_tokens", "ttft_ns"), [(1, 40 * MS), (0, None), (5, None)])
def test_time_per_token_needs_two_tokens(num_tokens: int, ttft_ns: int | None) -> None:
    assert tpot(record(num_output_tokens=num_tokens, ttft_ns=ttft_ns)) is None


def test_vllm_cuts_a_request_into_queue_prefill_and_decode() -> None:
    cut = phases(record())
    assert cut == {"queue": 10 * MS, "prefill": 26 * MS, "decode": 90 * MS, "inference": 116 * MS}
    assert sum(TTFT_SEGMENTS[:3]) * MS + cut["queue"] + cut["inference"] == record().e2e_ns
    assert phases(rejected("x")) == {}


def test_vllm_names_carry_our_figures() -> None:
    telemetry = Telemetry("tiny")
    gauges = {
        "requests_running": 3,
        "requests_waiting": 2,
        "kv_blocks": 8,
        "kv_blocks_used": 2,
        "preemptions_total": 1,
    }
    assert not any(name.startswith("vllm:num_requests") for name, *_ in values(telemetry))
    telemetry.watch(lambda: gauges)
    telemetry.journal.request(record(finish="cancelled"))
    telemetry.itl.add(5 * MS, 9)
    seen = values(telemetry)
    own = ("tiny", "0")
    assert seen[("vllm:num_requests_running", *own)] == 3
    assert seen[("vllm:kv_cache_usage_perc", *own)] == seen[("vllm:gpu_cache_usage_perc", *own)] == 0.25
    assert seen[("vllm:request_success_total", *own, "abort")] == 1
    assert seen[("vllm:time_to_first_token_seconds_sum", *own)] == pytest.approx(0.04)
    assert seen[("vllm:inter_token_latency_seconds_count", *own)] == 9
    assert seen[("vllm:request_queue_time_seconds_sum", *own)] == pytest.approx(0.01)
    assert seen[("vllm:generation_tokens_total", *own)] == 10


def test_gen_ai_metrics_have_the_labels_and_buckets_of_the_conventions() -> None:
    telemetry = Telemetry("tiny")
    telemetry.journal.request(record(is_chat=True))
    telemetry.journal.request(record(finish="cancelled"))
    telemetry.journal.request(rejected("too_long"))
    seen = values(telemetry)
    model = ("stageline", "tiny", "tiny")
    duration = "gen_ai_server_request_duration_seconds"
    assert seen[(f"{duration}_count", *model, "chat")] == 1
    assert seen[(f"{duration}_count", *model, "text_completion", "cancelled")] == 1
    assert seen[(f"{duration}_count", *model, "text_completion", "too_long")] == 1
    assert seen[(f"{duration}_bucket", *model, "chat", "81.92")] == 1
    assert seen[("gen_ai_server_time_to_first_token_seconds_count", *model, "chat")] == 1
    assert seen[("gen_ai_server_time_per_output_token_seconds_sum", *model, "chat")] == pytest.approx(0.01)
    assert seen[("gen_ai_client_token_usage_sum", *model, "chat", "input")] == 7
    assert seen[("gen_ai_client_token_usage_sum", *model, "chat", "output")] == 10
    assert [error_type(record(finish=finish)) for finish in ("stop", "length", "error")] == ["", "", "error"]


def test_the_buckets_of_the_conventions() -> None:
    """gen-ai-metrics.md, "This metric SHOULD be specified with ExplicitBucketBoundaries of"."""
    assert [ns / 1e9 for ns in DURATION_NS] == [
        *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
    ]
    assert [ns / 1e9 for ns in TTFT_NS] == [
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
    ]
    assert [ns / 1e9 for ns in TPOT_NS] == [
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
    ]
    assert list(TOKENS) == [
        *(1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
    ]


def test_the_names_of_others_can_be_left_out() -> None:
    telemetry = Telemetry("tiny", vllm_names=False, gen_ai_names=False)
    telemetry.journal.request(record())
    assert {name.partition("_")[0] for name, *_ in values(telemetry)} == {"stageline"}
