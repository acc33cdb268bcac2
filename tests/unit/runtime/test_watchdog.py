"""A step that does not end is noticed in time, once; others are not."""

import asyncio

from pipeline.runtime.watchdog import Watchdog


def test_a_step_that_does_not_end() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        told: list[float] = []
        watchdog = Watchdog(0.1, lambda: told.append(loop.time()))
        watchdog.begin(1)
        await asyncio.sleep(0.06)
        watchdog.end(1)
        stuck_s = loop.time()
        watchdog.begin(2)
        for step_id in range(3, 40):  # those of another worker go on
            watchdog.begin(step_id)
            watchdog.end(step_id)
            await asyncio.sleep(0.005)
        assert len(told) == 1 and told[0] - stuck_s >= 0.1

    asyncio.run(main())


def test_it_watches_nothing_that_has_ended_or_is_not_to_be_watched() -> None:
    async def main() -> None:
        told: list[int] = []
        watchdog, off = Watchdog(0.02, lambda: told.append(1)), Watchdog(0, lambda: told.append(2))
        off.begin(1)
        watchdog.begin(1)
        watchdog.end(1)
        watchdog.end(7)
        watchdog.begin(2)
        watchdog.clear()
        await asyncio.sleep(0.06)
        assert not told

    asyncio.run(main())
