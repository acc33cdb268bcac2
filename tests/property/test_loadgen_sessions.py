"""Whatever follows whatever, and however answers end: each job is sent or counted once, none too early."""

from heapq import heapify, heappop, heappush

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.sessions import Sessions
from loadgen.workload import Job


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    made: list[Job] = []
    for index in range(draw(st.integers(1, 25))):
        after = draw(st.none() | st.integers(0, index - 1)) if index else None
        think_s = draw(st.none() | st.floats(0, 5)) if after is not None else None
        made.append(Job(index, draw(st.floats(0, 20)), 1, 1, None, after, think_s))
    return made


@given(jobs(), st.none() | st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_every_job_once_in_order_and_never_too_early(
    made: list[Job], num_users: int | None, chance: object
) -> None:
    sessions = Sessions(made, num_users)
    turns = sessions.begin()
    heapify(turns)
    ends: dict[int, tuple[float, bool]] = {}
    while turns:
        at_s, index = heappop(turns)
        assert index not in ends
        job = made[index]
        if job.after is not None:
            before_s, is_answered = ends[job.after]
            assert at_s >= before_s
            assert not is_answered or at_s >= max(job.due_s, before_s + (job.think_s or 0))
        end_s, is_answered = at_s + chance.uniform(0, 3), chance.random() < 0.7  # type: ignore[attr-defined]
        ends[index] = end_s, is_answered
        for turn in sessions.ended(index, end_s, is_answered=is_answered):
            heappush(turns, turn)
    assert sorted(ends) == list(range(len(made)))
