import asyncio
from time import perf_counter_ns

import pytest

from pipeline.bench.replay import Pace
from pipeline.bench.replay.alarm import Alarm
from pipeline.bench.virtual_time import VirtualLoop


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "fast"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - float's own words, or none
        Pace.of(text)


def test_times_are_kept_from_the_first_on_and_scaled() -> None:
    pace = Pace.of("2")
    assert [pace.due_ns(at_ns, 1000) for at_ns in (500, 700, 300)] == [1000, 1100, 900]
    assert pace.scaled(90) == 45
    assert Pace.of("recorded").scaled(90) == 90
    assert Pace.of("max").scaled(90) == 0


def test_who_waits_is_there_in_time_and_the_loop_sleeps_meanwhile() -> None:
    num_passes = 0

    class Counting(asyncio.SelectorEventLoop):
        def _run_once(self) -> None:
            nonlocal num_passes
            num_passes += 1
            super()._run_once()  # type: ignore[misc]  # of asyncio.BaseEventLoop, and not public

    async def main() -> list[int]:
        with Alarm() as alarm:
            pace, begin_ns = Pace.of("recorded", alarm.call_later), perf_counter_ns()
            dues_ns = [begin_ns + wait_ms * 1_000_000 for wait_ms in (30, 10, 20)]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_late_ns(pace, due_ns)) for due_ns in dues_ns]
            return [task.result() for task in tasks]

    with asyncio.Runner(loop_factory=Counting) as runner:
        late_ns = runner.run(main())
    assert all(each_ns >= 0 for each_ns in late_ns)
    assert num_passes < 40


async def _late_ns(pace: Pace, due_ns: int) -> int:
    await pace.until(due_ns, perf_counter_ns)
    return perf_counter_ns() - due_ns


def test_an_alarm_ends_with_calls_still_due() -> None:
    async def main() -> None:
        with Alarm() as alarm:
            alarm.call_later(3600, lambda: None)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_paces_that_are_shared_go_by_one_clock() -> None:
    pace = Pace.of("2")
    pace.share(5000)
    assert [pace.due_ns(at_ns, 1) for at_ns in (500, 700)] == [5250, 5350]


def test_virtual_time_jumps_over_sleep_but_not_over_work() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        begin_ns = loop.clock()
        runner.run(asyncio.sleep(3600))
        assert loop.clock() - begin_ns >= 3600e9
        assert loop.clock.skipped_ns > 3590e9
        skipped_ns = loop.clock.skipped_ns

        async def work() -> None:
            timer = asyncio.ensure_future(asyncio.sleep(0.2))
            await asyncio.to_thread(sum, range(1000))
            assert not timer.done()
            timer.cancel()

        runner.run(work())
        assert loop.clock.skipped_ns == skipped_ns


def test_timers_of_virtual_time_come_in_their_order() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        begin_s, seen = loop.time(), []
        for delay_s in (5.0, 0.001, 60.0):
            loop.call_later(delay_s, lambda: seen.append(loop.time() - begin_s))
        await asyncio.sleep(61)
        return seen

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main()) == pytest.approx([0.001, 5, 60], abs=0.2)
