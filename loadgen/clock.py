"""The run's clock, and how well the generator itself keeps time."""

import asyncio
import time

TICK_S = 0.01
"""Of the sleeps that the loop lag is sampled by."""


class RunClock:
    """Seconds after `start()`, monotonic."""

    def __init__(self) -> None:
        self._zero_s = time.perf_counter()

    def start(self) -> None:
        self._zero_s = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self._zero_s


async def sample_loop_lag(lags_s: list[float]) -> None:
    """Appends how late a 10 ms sleep wakes, until cancelled: what the event loop adds to every time stamp."""
    while True:
        due_s = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        lags_s.append(max(0.0, time.perf_counter() - due_s))
