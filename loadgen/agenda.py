"""Turns in order of time, to which more may be added while they are worked off."""

import asyncio
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from loadgen.sessions import Turn


class Agenda:
    """Equal times come in order of the index.

    Args:
        clock: the seconds that times are in.
    """

    def __init__(self, turns: Iterable[Turn], clock: Callable[[], float]) -> None:
        self._turns = list(turns)
        heapify(self._turns)
        self._clock = clock
        self._waiter: asyncio.Future[None] | None = None

    def add(self, turn: Turn) -> None:
        heappush(self._turns, turn)
        self._wake()

    async def next(self) -> Turn:
        """The earliest turn, not before its time. Waits for ever if there will be none."""
        while True:
            wait_s = self._turns[0][0] - self._clock() if self._turns else None
            if wait_s is not None and wait_s <= 0:
                return heappop(self._turns)
            await self._wait(wait_s)

    async def _wait(self, wait_s: float | None) -> None:
        """Until then, or until a turn is added. By hand: `asyncio.timeout` costs several times as much."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if wait_s is None else loop.call_later(wait_s, self._wake)
        try:
            await self._waiter
        finally:
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
