import json
from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.trace import Point, TracePoint
from pipeline.telemetry import RequestRecord, StepRecord
from pipeline.telemetry.perfetto import Recorded, chrome_trace
from tests.unit.telemetry.records import MS, rejected, request, step, unserved

Event = dict[str, Any]
Found = list[tuple[str, float, float]]
"""(name, begin us, duration us)."""


def events(
    *points: TracePoint,
    requests: tuple[RequestRecord, ...] = (),
    steps: tuple[StepRecord, ...] = (),
    since_ns: int = 0,
) -> list[Event]:
    recorded = Recorded(since_ns, list(points), list(requests), list(steps))
    trace: list[Event] = json.loads(chrome_trace(recorded))["traceEvents"]
    return trace


def tracks(found: list[Event]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}


def slices(found: list[Event]) -> dict[str, Found]:
    """The complete slices by the name of their track, in the order of the file."""
    names = tracks(found)
    by_track: dict[str, Found] = defaultdict(list)
    for event in found:
        if event["ph"] == "X":
            slice_ = (event["name"], event["ts"], event["dur"])
            by_track[names[event["pid"], event["tid"]]].append(slice_)
    return dict(by_track)


def handled(at_ns: int, end_ns: int, stage: str = "sample", count: int = 1) -> TracePoint:
    return (at_ns, Point.HANDLED, stage, end_ns - at_ns, count)


def test_nothing_recorded_is_a_valid_trace() -> None:
    assert [event["ph"] for event in events()] == ["M"] * 4


# Stages -----------------------------------------------------------------------------------------


def test_a_stage_has_one_track_of_slices_in_microseconds() -> None:
    found = slices(events(handled(1_000, 3_500), handled(4_000, 4_250)))
    assert found == {"sample": [("sample", 0.0, 2.5), ("sample", 3.0, 0.25)]}


def test_instances_of_a_pool_that_overlap_get_tracks_of_their_own() -> None:
    points = [handled(0, 2_000, "tokenize", 3), handled(1_000, 5_000, "tokenize", 2)]
    assert slices(events(*points)) == {
        "tokenize": [("tokenize", 0.0, 2.0)],
        "tokenize #2": [("tokenize", 1.0, 4.0)],
    }


def test_stages_are_shown_in_the_order_of_the_data() -> None:
    stages = ("stream", "execute", "my own", "tokenize")
    found = events(*(handled(0, 9, stage) for stage in stages))
    names = [name for _, name in sorted(tracks(found).items())]
    assert names == ["tokenize", "execute", "stream", "my own"]
    assert not {tid for _, tid in tracks(found)} & {1, 2}, "no track is taken for its process's main thread"


def test_what_a_stage_did_before_the_window_is_left_out() -> None:
    found = slices(events(handled(0, 1_000), handled(2_000, 3_000), since_ns=1_500))
    assert found == {"sample": [("sample", 2.0, 1.0)]}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10_000),
            st.sampled_from(list(Point)),
            st.sampled_from(["tokenize", "sample"]),
            st.integers(-1, 3),
            st.integers(1, 2),
        ),
        max_size=40,
    )
)
def test_any_points_give_slices_that_never_overlap_on_a_stages_track(points: list[TracePoint]) -> None:
    points = sorted(points)
    for track, found in slices(events(*points)).items():
        end_us = 0.0
        for _, begin_us, duration_us in found if not track.startswith("request") else ():
            assert begin_us >= end_us - 1e-6
            end_us = begin_us + duration_us


# Steps ------------------------------------------------------------------------------------------


def test_the_device_has_a_slice_for_each_step_with_its_tokens() -> None:
    found = events(steps=(step(1), step(2)))
    assert slices(found) == {"device": [("step 1", 2000.0, 6000.0), ("step 2", 12000.0, 6000.0)]}
    (first, _) = (event for event in found if event["ph"] == "X")
    assert first["args"] == {
        "step": 1,
        "rows": 5,
        "prefill_tokens": 60,
        "decode_tokens": 4,
        "planned_before_us": 2000.0,
        "host_gap_us": 1000.0,
        "preempted": 0,
    }


def test_counters_follow_the_plans() -> None:
    found = [(e["name"], e["ts"], e["args"]) for e in events(steps=(step(1),)) if e["ph"] == "C"]
    assert found == [
        ("sequences", 0.0, {"running": 5, "waiting": 3}),
        ("blocks", 0.0, {"used": 11}),
        ("step tokens", 0.0, {"prefill": 60, "decode": 4}),
    ]


# Requests ---------------------------------------------------------------------------------------


def test_a_requests_parts_fill_it_and_what_took_no_time_is_left_out() -> None:
    segments_ns = tuple(0 if i == 9 else value for i, value in enumerate(request().ttft_segments_ns))
    record = request(ttft_segments_ns=segments_ns, ttft_ns=52 * MS)
    (track,) = slices(events(requests=(record,))).values()
    assert track[:5] == [
        ("request 7", 0.0, 208_000.0),
        ("ttft", 0.0, 52_000.0),
        ("ingress", 0.0, 1_000.0),
        ("tokenize", 1_000.0, 5_000.0),
        ("wait", 1_000.0, 2_000.0),
    ]
    assert track[-1] == ("decode", 52_000.0, 156_000.0)
    detokenize = [name for name, begin_us, _ in track if 44_000.0 <= begin_us < 45_000.0]
    assert detokenize == ["detokenize", "service"]


def test_what_is_told_of_a_request() -> None:
    trace_parent = f"00-{'a' * 32}-{'b' * 16}-01"
    found = events(requests=(request(trace_parent=trace_parent),))
    (outer, *_, decode) = (event for event in found if event["ph"] == "X")
    assert outer["args"] == {
        "finish": "stop",
        "prompt_tokens": 100,
        "cached_tokens": 96,
        "output_tokens": 8,
        "preemptions": 1,
        "dropped_tokens": 0,
        "paused_ms": 0.0,
        "trace_id": "a" * 32,
    }
    assert decode["args"]["execute.service_ms"] == 100.0
    assert decode["args"]["overlap_ms"] == 11.0
    (preempted,) = (event for event in found if event["ph"] == "i")
    assert (preempted["name"], preempted["ts"]) == ("preempted", 100_000.0)


def test_requests_without_a_first_token() -> None:
    found = slices(events(requests=(unserved(), rejected(request_id=8))))
    assert [name for name, _, _ in found["request 7"][:2]] == ["request 7", "ingress"]
    assert sum(us for name, _, us in found["request 7"] if name in ("wait", "service")) == 207_000.0
    assert found["request 8"] == [("request 8", 0.0, 4_000.0)]


def test_a_live_request_has_a_beginning_and_the_parts_it_has_behind_it() -> None:
    found = events(
        (0, Point.ARRIVED, "ingress", 3, 1),
        (1_000, Point.TOKENIZED, "tokenize", 3, 1),
        (5_000, Point.SCHEDULED, "schedule", 3, 1),
        (6_000, Point.PREEMPTED, "schedule", 3, 1),
        (7_000, Point.SCHEDULED, "schedule", 3, 1),
        since_ns=6_500,
    )
    assert [(event["ph"], event["name"], event["ts"]) for event in found if event["ph"] in "BE"] == [
        ("B", "request 3 (live)", 0.0),
        ("B", "tokenize", 0.0),
        ("E", "tokenize", 1.0),
        ("B", "wait for a slot", 1.0),
        ("E", "wait for a slot", 5.0),
    ]
    assert [(event["name"], event["ts"]) for event in found if event["ph"] == "i"] == [("preempted", 6.0)]


def test_a_request_that_has_ended_is_not_live() -> None:
    arrived = (0, Point.ARRIVED, "ingress", 3, 1)
    assert not slices(events(arrived, (9, Point.FINISHED, "stream", 3, 1)))
    assert not [e for e in events(arrived, (9, Point.FINISHED, "stream", 3, 1)) if e["ph"] == "B"]


def test_requests_are_shown_in_the_order_of_their_arrival() -> None:
    found = events(
        (1000 * MS - 5, Point.ARRIVED, "ingress", 6, 1),
        requests=(request(request_id=8, arrived_ns=9**10), request()),
    )
    names = [name for (pid, _), name in sorted(tracks(found).items()) if pid == 2]
    assert names == ["request 6", "request 7", "request 8"]


def test_nanoseconds_survive() -> None:
    base_ns = 123_456_789_012_345
    record = request(arrived_ns=base_ns + 3_600_000_000_001, preempted_ns=())
    found = events(
        requests=(record,), steps=(step(planned_ns=base_ns, begin_ns=base_ns, end_ns=base_ns + 7),)
    )
    (outer,) = (event for event in found if event["name"] == "request 7")
    assert outer["ts"] == 3_600_000_000.001
