"""From recorded rows to due times: ties, sessions, and what the plan says of itself."""

from pathlib import Path

import pytest

from loadgen.ties import num_tied, untied
from loadgen.timing import Closed, OnOff, Renewal, Scale
from loadgen.traces.row import NS_PER_S, Trace, TraceRow
from loadgen.workload import Limits, Pacing, plan

GRID = [0.0, 0.0, 0.0, 3.0, 6.0, 6.0]
"""Two groups of ties on a grid of 3 s."""


def trace(*rows: tuple[float, int | None, float | None]) -> Trace:
    """Rows of (time, after, think time)."""
    made = [TraceRow(round(at * NS_PER_S), 10, 5, after=after, think_s=think) for at, after, think in rows]
    return Trace(Path("t"), "test", "", made, [], [], True)


def flat(times: list[float]) -> Trace:
    return trace(*((at, None, None) for at in times))


def due(made: Trace, **pacing: object) -> list[float]:
    return [job.due_s for job in plan(made, Limits(), Pacing(**pacing)).jobs]  # type: ignore[arg-type]


def test_ties_as_they_stand_or_spread_over_the_gap_to_the_next_time() -> None:
    assert num_tied(GRID) == 5
    assert untied(GRID, "burst", 0) == GRID
    assert untied(GRID, "spread", 0) == [0, 1, 2, 3, 6, 7.5]
    assert untied([5.0, 5.0], "spread", 0) == [5, 5]  # one time only: there is no gap to spread over


def test_jittered_ties_are_uniform_in_the_gap_in_order_and_by_seed() -> None:
    times = [3.0 * (i // 10) for i in range(10_000)]
    found = untied(times, "jitter", 1)
    assert found == sorted(found) == untied(times, "jitter", 1) != untied(times, "jitter", 2)
    offsets = [at - base for at, base in zip(found, times, strict=True)]
    assert all(0 <= offset < 3 for offset in offsets)
    quarters = [sum(q <= offset / 0.75 < q + 1 for offset in offsets) for q in range(4)]
    assert quarters == pytest.approx([2500] * 4, rel=0.06)  # 4 standard deviations are 7 %
    assert untied([0.0, 3.0, 6.0], "jitter", 1) == [0, 3, 6]  # a row alone stays where it is


def test_scale_divides_gaps_after_ties_are_resolved() -> None:
    assert due(flat(GRID), timing=Scale(2), ties="spread") == [0, 0.5, 1, 1.5, 3, 3.75]


def test_a_follower_keeps_its_distance_from_what_it_follows() -> None:
    rows = trace((0, None, None), (10, None, None), (14, 0, None), (30, 2, 2.0))
    assert due(rows) == [0, 10, 14, 30]
    assert due(rows, timing=Scale(2)) == [0, 5, 7, 15]
    assert due(rows, timing=Renewal(0.5, 0)) == [0, 2, 14, 30]
    assert due(rows, timing=Closed(2)) == [0, 0, 0, 0]
    assert due(rows, timing=Closed()) == [0, 10, 0, 0]
    jobs = plan(rows, Limits()).jobs
    assert [(job.index, job.after, job.think_s) for job in jobs[2:]] == [(2, 0, None), (3, 2, 2.0)]


def test_the_plan_says_what_it_will_do() -> None:
    found = plan(flat(GRID), Limits(), Pacing(ties="spread")).arrivals
    assert (found.num_by_clock, found.num_tied, found.span_s) == (6, 5, 7.5)
    assert "timing trace: 6 rows that follow no other over 7.5 s, 0.667/s" in str(found)
    assert "5 share their recorded time (--ties spread)" in str(found)
    sessions = plan(trace((0, None, None), (1, 0, None)), Limits(), Pacing(Renewal(5, 1))).arrivals
    assert (sessions.num_following, sessions.num_tied) == (1, 0)
    assert "1 follow answers" in str(sessions)


def test_the_mean_gap_is_of_the_plan_and_none_without_a_clock() -> None:
    assert plan(flat([0, 1, 2]), Limits(), Pacing(Renewal(4, 0))).mean_gap_s == 0.25
    closed = plan(flat([0, 1, 2]), Limits(), Pacing(Closed(2)))
    assert closed.mean_gap_s is None and closed.num_users == 2


def test_prompts_do_not_depend_on_the_timing() -> None:
    """A job's index, which its prompt is made from, is its row's, however it is timed."""
    for timing in (Scale(3), Renewal(2, 1), OnOff(9, 1, 1, 1), Closed(1)):
        jobs = plan(flat(GRID), Limits(), Pacing(timing)).jobs
        assert [job.index for job in jobs] == list(range(6))
