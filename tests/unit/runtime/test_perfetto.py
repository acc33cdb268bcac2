import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.perfetto import REQUESTS, chrome_trace
from pipeline.runtime.trace import Point, TracePoint


def events(*points: TracePoint) -> list[dict[str, Any]]:
    trace: list[dict[str, Any]] = json.loads(chrome_trace(list(points)))["traceEvents"]
    return trace


def track_names(all_events: list[dict[str, Any]]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in all_events if event["name"] == "thread_name"}


def slices(*points: TracePoint) -> list[tuple[str, float, float]]:
    """(track, begin us, duration us) of each complete slice."""
    found = events(*points)
    names = track_names(found)
    return [(names[event["tid"]], event["ts"], event["dur"]) for event in found if event["ph"] == "X"]


def recv(at_ns: int, stage: str = "sample", count: int = 1) -> TracePoint:
    return (at_ns, Point.RECV, stage, -1, count)


def done(at_ns: int, stage: str = "sample", count: int = 1) -> TracePoint:
    return (at_ns, Point.DONE, stage, -1, count)


def test_nothing_recorded_is_a_valid_trace() -> None:
    assert [event["ph"] for event in events()] == ["M"] * 4


def test_a_stage_has_one_track_of_slices_in_microseconds() -> None:
    assert slices(recv(1_000), done(3_500), recv(4_000), done(4_250)) == [
        ("sample", 0.0, 2.5),
        ("sample", 3.0, 0.25),
    ]


def test_halves_cut_off_by_the_ring_are_left_out() -> None:
    assert slices(done(0), recv(1_000), done(2_000), recv(3_000)) == [("sample", 1.0, 1.0)]


def test_instances_of_a_pool_that_overlap_get_tracks_of_their_own() -> None:
    found = slices(
        recv(0, "tokenize", 3),
        recv(1_000, "tokenize", 2),
        done(2_000, "tokenize", 3),
        done(5_000, "tokenize", 2),
    )
    assert found == [("tokenize", 0.0, 2.0), ("tokenize #2", 1.0, 4.0)]


def test_device_slices_are_matched_by_step_and_may_be_recorded_late() -> None:
    points = [
        (9_000, Point.DEVICE_END, "execute", 2, 4),
        (1_000, Point.DEVICE_BEGIN, "execute", 1, 4),
        (5_000, Point.DEVICE_END, "execute", 1, 4),
        (5_000, Point.DEVICE_BEGIN, "execute", 2, 4),
        (9_500, Point.DEVICE_END, "execute", 7, 4),
    ]
    assert slices(*points) == [("device (execute)", 0.0, 4.0), ("device (execute)", 4.0, 4.0)]


def test_steps_are_instants_on_their_stage() -> None:
    found = events((5, Point.PLAN, "schedule", 7, 64), (9, Point.REFUSED, "tokenize", -1, 2))
    names = track_names(found)
    instants = [(names[event["tid"]], event["name"], event["args"]) for event in found if event["ph"] == "i"]
    assert instants == [
        ("schedule", "plan", {"key": 7, "count": 64}),
        ("tokenize", "refused", {"key": -1, "count": 2}),
    ]


def test_a_request_is_an_outer_slice_with_its_parts_nested() -> None:
    life = [Point.ARRIVED, Point.TOKENIZED, Point.SCHEDULED, Point.FIRST_TOKEN, Point.FINISHED]
    found = events(
        *((index * 1_000, point, "x", 12, 1) for index, point in enumerate(life)),
        (2_500, Point.PREEMPTED, "schedule", 12, 1),
    )
    spans = [(e["ph"], e["name"], e["ts"], e["id"]) for e in found if e.get("pid") == REQUESTS and "id" in e]
    assert spans[0] == ("n", "preempted", 2.5, 12)
    assert spans[1:3] == [("b", "request 12", 0.0, 12), ("e", "request 12", 4.0, 12)]
    assert [(name, ts) for phase, name, ts, _ in spans[3:] if phase == "b"] == [
        ("tokenize", 0.0),
        ("wait for a slot", 1.0),
        ("prefill", 2.0),
        ("decode", 3.0),
    ]


def test_a_request_still_alive_shows_the_parts_it_has() -> None:
    found = events((0, Point.ARRIVED, "ingress", 3, 1), (1_000, Point.TOKENIZED, "tokenize", 3, 1))
    assert [event["name"] for event in found if event["ph"] == "b"] == ["tokenize"]


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
def test_any_points_give_slices_that_never_overlap_on_a_track(points: list[TracePoint]) -> None:
    end_us: dict[str, float] = {}
    for track, begin_us, duration_us in slices(*points):
        assert begin_us >= end_us.get(track, 0.0) - 1e-6
        end_us[track] = begin_us + duration_us
