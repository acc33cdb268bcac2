"""Counters become rates, records columns and moments."""

from typing import Any

import msgspec
import pytest

from pipeline.admin import snapshot
from pipeline.admin.views import Moment, Spread, StageView, SwapView
from pipeline.messages import SEGMENTS
from pipeline.telemetry import Occupancy, RequestRecord, Sample, StageSample, StepRecord, SwapRecord
from pipeline.topology import NODES

MS = 1_000_000


def zeros(struct: type[msgspec.Struct], **values: Any) -> dict[str, Any]:
    """Every field that must be given, as 0 unless it is in `values`."""
    return {field.name: 0 for field in msgspec.structs.fields(struct) if field.required} | values


def sample(at_ms: int, **stages: dict[str, int]) -> Sample:
    made = tuple(
        StageSample(**(zeros(StageSample, name=node.name, workers=1, bound=8) | stages.get(node.name, {})))
        for node in NODES
    )
    return Sample(**zeros(Sample, at_ns=at_ms * MS, stages=made, thread_cpu_ns={}))


def step(number: int, applied_ms: float, **fields: int) -> StepRecord:
    return StepRecord(**zeros(StepRecord, step_id=number, applied_ns=int(applied_ms * MS), **fields))


def request(number: int, arrived_ms: int, e2e_ms: int, ttft_ms: int | None) -> RequestRecord:
    return RequestRecord(
        **zeros(
            RequestRecord,
            request_id=number,
            arrived_ns=arrived_ms * MS,
            e2e_ns=e2e_ms * MS,
            ttft_ns=None if ttft_ms is None else ttft_ms * MS,
            finish="stop",
            code="",
            segments_ns=(2 * MS,) * len(SEGMENTS),
            ttft_segments_ns=() if ttft_ms is None else (MS,) * len(SEGMENTS),
            trace_parent="",
        )
    )


def views(before: Sample, now: Sample, **records: Any) -> dict[str, StageView]:
    work = snapshot.work_of(records.get("requests", []), records.get("steps", []))
    made = snapshot.stage_views(
        before, now, work, work.device_ns, records.get("occupancy"), snapshot.Bounds(100, 50)
    )
    return {view.name: view for view in made}


def test_a_stage_between_two_samples() -> None:
    before = sample(1000, tokenize={"workers": 2})
    now = sample(
        3000,
        tokenize={
            "workers": 2,
            "depth": 3,
            "num_batches": 4,
            "num_messages": 10,
            "busy_ns": 1000 * MS,
            "num_waited": 10,
            "waited_ns": 50 * MS,
            "blocked_ns": 500 * MS,
            "posted": 2,
            "refused": 6,
        },
    )
    view = views(before, now)["tokenize"]
    assert (view.depth, view.bound, view.per_s, view.posted_per_s) == (3, 8, 5.0, 1.0)
    assert view.busy == 0.25  # 1 s of the 4 s that two workers have
    assert (view.service_us, view.wait_us, view.batch) == (250_000, 5_000, 2.5)
    assert (view.refused_per_s, view.blocked) == (3.0, 0.25)


def test_a_stage_that_did_nothing_has_no_times() -> None:
    view = views(sample(0), sample(500))["stream"]
    assert (view.per_s, view.busy) == (0, 0)
    assert view.service_us is None and view.wait_us is None and view.batch is None


def test_the_device_is_what_keeps_execute_busy() -> None:
    steps = [step(1, 100, begin_ns=0, end_ns=400 * MS), step(2, 900, begin_ns=500 * MS, end_ns=900 * MS)]
    assert views(sample(0), sample(1000), steps=steps)["execute"].busy == 0.8


def test_the_door_counts_requests() -> None:
    now = msgspec.structs.replace(sample(2000), num_live=7, num_refused=4, num_received=8)
    view = views(sample(0), now, requests=[request(1, 0, 10, 5)])["ingress"]
    assert (view.depth, view.bound, view.per_s, view.refused_per_s) == (7, 100, 4.0, 2.0)
    assert view.service_us == 2000


def test_the_scheduler_shows_who_waits_in_it() -> None:
    now = sample(1000, schedule={"depth": 2})
    assert (views(sample(0), now)["schedule"].depth, views(sample(0), now)["schedule"].bound) == (2, 58)
    view = views(sample(0), now, occupancy=Occupancy(1, 30, b""))["schedule"]
    assert (view.depth, view.bound) == (32, 58)


def test_totals() -> None:
    now = msgspec.structs.replace(sample(2000), num_live=5, process_cpu_ns=500 * MS)
    steps = [step(k, k, num_prefill_tokens=10, num_decode_tokens=4, host_gap_ns=3000) for k in range(4)]
    halves = (snapshot.work_of([request(1, 0, 10, 5)], steps[:1]), snapshot.work_of([], steps[1:]))
    totals = snapshot.totals(sample(0), now, snapshot.together(halves), Occupancy(3, 2, b""))
    assert (totals.live, totals.running, totals.waiting) == (5, 3, 2)
    assert (totals.requests_per_s, totals.prefill_per_s, totals.decode_per_s) == (0.5, 20, 8)
    assert (totals.steps_per_s, totals.gap_us, totals.cpu) == (2, 3, 0.25)


def test_columns_keep_the_latest() -> None:
    steps = [step(k, k, begin_ns=0, end_ns=5000, num_rows=k) for k in range(snapshot.MAX_STEPS + 10)]
    columns = snapshot.step_columns(steps)
    assert columns.id == list(range(10, snapshot.MAX_STEPS + 10))
    assert set(columns.device_us) == {5} and columns.rows == columns.id
    requests = [request(k, k, 20, 5) for k in range(snapshot.MAX_REQUESTS + 3)]
    shown = snapshot.request_views(requests)
    assert [view.id for view in shown] == list(range(3, snapshot.MAX_REQUESTS + 3))
    assert shown[0].segments_us == [2000] * len(SEGMENTS) and shown[0].first_us == [1000] * len(SEGMENTS)


def test_a_moment_has_the_middle_and_the_worst() -> None:
    ended = [request(1, 0, 50, 30), request(2, 0, 50, 10), request(3, 0, 50, 20), request(4, 0, 50, None)]
    steps = [step(1, 0), step(2, 4, num_decode_tokens=1), step(3, 14, num_decode_tokens=1), step(4, 99)]
    found = snapshot.moment(7 * MS, ended, steps)
    assert found.at_us == 7000
    assert found.ttft == Spread(3, 20_000, 30_000)
    assert found.itl == Spread(2, 4_000, 10_000)  # the last step decoded nothing
    assert snapshot.moment(0, [], []) == Moment(0, None, None)


def test_history_is_what_the_moments_would_have_been() -> None:
    tick_ns = 500 * MS
    requests = [request(1, 0, 100, 10), request(2, 0, 600, 20), request(3, 600, 350, 40)]
    steps = [step(k, 100 * k, num_decode_tokens=1) for k in range(1, 10)]
    found = snapshot.history(1000 * MS, tick_ns, requests, steps)
    assert [moment.at_us for moment in found] == [500_000, 1_000_000]
    assert [moment.ttft.count for moment in found if moment.ttft] == [1, 2]
    intervals = [moment.itl.count for moment in found if moment.itl]
    assert sum(intervals) == len(steps) - 1  # none is lost between two moments


@pytest.mark.parametrize("num_steps", [0, 1])
def test_history_of_little(num_steps: int) -> None:
    steps = [step(1, 10, num_decode_tokens=1)] * num_steps
    assert all(moment.itl is None for moment in snapshot.history(MS * 1000, MS, [], steps))


def test_a_swap() -> None:
    record = SwapRecord(5 * MS, "sample", "a:A", "b:B", "rolled_back", "it waits", 210_000)
    assert snapshot.swap_views([record]) == [
        SwapView(5000, "sample", "a:A", "b:B", "rolled_back", "it waits", 210)
    ]
