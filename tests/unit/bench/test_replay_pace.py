import asyncio

import pytest

from pipeline.bench.replay import Pace
from pipeline.bench.virtual_time import VirtualLoop
from pipeline.runtime.testing import ManualClock


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


def test_who_waits_is_there_in_time_and_passes_the_loop_at_the_end() -> None:
    clock = ManualClock(0)

    async def main() -> int:
        num_passes = 0

        def tick() -> None:
            nonlocal num_passes
            num_passes += 1
            clock.advance(100_000)
            if clock.now_ns < 1_000_000:
                asyncio.get_running_loop().call_soon(tick)

        tick()
        await Pace.of("recorded").until(1_000_000, clock)
        return num_passes

    assert asyncio.run(main()) >= 9
    assert clock.now_ns >= 1_000_000


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
