"""Turns in order of time, to which more may be added while they are worked off."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
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
        self._has_more = asyncio.Event()

    def add(self, turn: Turn) -> None:
        heappush(self._turns, turn)
        self._has_more.set()

    async def next(self) -> Turn:
        """The earliest turn, not before its time. Waits for ever if there will be none."""
        while True:
            wait_s = self._turns[0][0] - self._clock() if self._turns else None
            if wait_s is not None and wait_s <= 0:
                return heappop(self._turns)
            self._has_more.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._has_more.wait()
