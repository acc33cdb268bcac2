"""Who may be sent when: followers, failures, users; and the agenda that hands them out."""

import asyncio

from loadgen.agenda import Agenda
from loadgen.clock import RunClock
from loadgen.sessions import Sessions, Turn
from loadgen.workload import Job


def job(index: int, due_s: float = 0.0, after: int | None = None, think_s: float | None = None) -> Job:
    return Job(index, due_s, 1, 1, None, after, think_s)


def test_what_follows_nothing_begins_when_it_is_due() -> None:
    sessions = Sessions([job(0, 0), job(1, 5), job(2, 6, after=0)], None)
    assert sessions.begin() == [(0, 0), (5, 1)]


def test_a_follower_waits_for_its_time_the_answer_and_the_think_time() -> None:
    jobs = [job(0), job(1, 10, after=0, think_s=2), job(2, 20, after=0, think_s=None)]
    assert Sessions(jobs, None).ended(0, 5.0, is_answered=True) == [(10, 1), (20, 2)]
    assert Sessions(jobs, None).ended(0, 9.0, is_answered=True) == [(11, 1), (20, 2)]
    assert Sessions(jobs, None).ended(0, 25.0, is_answered=True) == [(27, 1), (25, 2)]


def test_without_an_answer_its_followers_come_at_once() -> None:
    jobs = [job(0), job(1, 10, after=0), job(2, 20, after=1)]
    sessions = Sessions(jobs, None)
    assert sessions.ended(0, 3.0, is_answered=False) == [(3, 1)]
    assert sessions.ended(1, 3.0, is_answered=False) == [(3, 2)]


def test_a_user_takes_the_next_session_when_all_of_its_last_has_ended() -> None:
    jobs = [job(0), job(1), job(2), job(3, after=0), job(4, after=0), job(5)]
    sessions = Sessions(jobs, 2)
    assert sessions.begin() == [(0, 0), (0, 1)]
    assert sessions.ended(1, 1.0, is_answered=True) == [(1, 2)]
    assert sessions.ended(0, 2.0, is_answered=True) == [(2, 3), (2, 4)]
    assert sessions.ended(3, 3.0, is_answered=True) == []
    assert sessions.ended(4, 4.0, is_answered=True) == [(4, 5)]
    assert sessions.ended(2, 5.0, is_answered=True) == []


def test_every_job_is_handed_out_once() -> None:
    jobs = [job(i, i * 0.1, after=None if i % 4 == 0 else i - 1) for i in range(40)]
    for num_users in (None, 1, 3, 99):
        sessions = Sessions(jobs, num_users)
        turns, seen = sessions.begin(), []
        while turns:
            at_s, index = turns.pop()
            seen.append(index)
            turns += sessions.ended(index, at_s + 1, is_answered=index % 7 > 0)
        assert sorted(seen) == list(range(40))


def test_the_agenda_waits_and_takes_what_comes_earlier_first() -> None:
    async def body() -> list[tuple[int, float]]:
        clock = RunClock()
        agenda = Agenda([(0.3, 9), (0.0, 2), (0.0, 1)], clock)
        found: list[tuple[int, float]] = []

        async def take() -> None:
            for _ in range(4):
                at_s, index = await agenda.next()
                assert clock() >= at_s
                found.append((index, round(clock() - at_s, 1)))

        async with asyncio.TaskGroup() as group:
            group.create_task(take())
            await asyncio.sleep(0.05)
            agenda.add((0.1, 7))
        return found

    assert asyncio.run(body()) == [(1, 0), (2, 0), (7, 0), (9, 0)]


def test_an_empty_agenda_waits_for_more() -> None:
    async def body() -> Turn:
        agenda = Agenda([], RunClock())
        asyncio.get_running_loop().call_later(0.05, agenda.add, (0.0, 3))
        return await asyncio.wait_for(agenda.next(), 2)

    assert asyncio.run(body()) == (0.0, 3)
