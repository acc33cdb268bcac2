"""Pace: when what was recorded is sent again."""

import asyncio
from collections.abc import Callable

MAX = "max"
RECORDED = "recorded"

CallLater = Callable[[float, Callable[[], object]], object]
"""After so many seconds, this, on the loop."""


class Pace:
    """Times of a recording, `factor` times as fast, on the clock of the stand.

    Args:
        factor: None: nothing waits for its time, but for the one before to be taken.
        call_later: None: the loop's own, which is exact in virtual time.
    """

    def __init__(self, factor: float | None, call_later: CallLater | None = None) -> None:
        self.factor = factor
        self.is_shared = False
        """Others are replayed beside it, by the same clock: what comes of a step comes when it came."""
        self._call_later = call_later
        self._origin_ns: int | None = None

    @classmethod
    def of(cls, rate: str, call_later: CallLater | None = None) -> "Pace":
        """`recorded`, `max` or a factor. Raises ValueError."""
        if rate == MAX:
            return cls(None)
        factor = 1.0 if rate == RECORDED else float(rate)
        if not 0 < factor < float("inf"):
            raise ValueError
        return cls(factor, call_later)

    def share(self, origin_ns: int) -> None:
        """The recording begins then, and others beside it."""
        self.is_shared = True
        self._origin_ns = origin_ns

    def due_ns(self, at_ns: int, now_ns: int) -> int:
        """When that is; the first one asked for is now, unless the pace is shared."""
        scaled_ns = int(at_ns / (self.factor or 1))
        if self._origin_ns is None:
            self._origin_ns = now_ns - scaled_ns
        return self._origin_ns + scaled_ns

    def scaled(self, span_ns: int) -> int:
        """How long something takes that took so long; 0 where nothing waits."""
        return int(span_ns / self.factor) if self.factor else 0

    async def until(self, due_ns: int, clock: Callable[[], int]) -> None:
        """Returns at once if that has passed."""
        while (left_ns := due_ns - clock()) > 0:
            passed = asyncio.Event()
            self.call_in(left_ns, passed.set)
            await passed.wait()

    def call_in(self, left_ns: int, callback: Callable[[], object]) -> None:
        """On the loop; maybe a little too early, then look again."""
        call_later = self._call_later or asyncio.get_running_loop().call_later
        call_later(left_ns / 1e9, callback)
