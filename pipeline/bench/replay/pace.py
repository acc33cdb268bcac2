"""Pace: when what was recorded is sent again."""

import asyncio
from collections.abc import Callable

MAX = "max"
RECORDED = "recorded"
_SPUN_NS = 1_500_000
"""uvloop's timers are good to a millisecond: so long before its time, who waits passes the loop instead."""


class Pace:
    """Times of a recording, `factor` times as fast, on the clock of the stand.

    Args:
        factor: None: nothing waits for its time, but for the one before to be taken.
        is_exact: the loop's timers are, as those of virtual time.
    """

    def __init__(self, factor: float | None, *, is_exact: bool = False) -> None:
        self.factor = factor
        self._spun_ns = 0 if is_exact else _SPUN_NS
        self._origin_ns: int | None = None

    @classmethod
    def of(cls, rate: str, *, is_exact: bool = False) -> "Pace":
        """`recorded`, `max` or a factor. Raises ValueError."""
        if rate == MAX:
            return cls(None)
        factor = 1.0 if rate == RECORDED else float(rate)
        if not 0 < factor < float("inf"):
            raise ValueError
        return cls(factor, is_exact=is_exact)

    def due_ns(self, at_ns: int, now_ns: int) -> int:
        """When that is; the first one asked for is now."""
        scaled_ns = int(at_ns / (self.factor or 1))
        if self._origin_ns is None:
            self._origin_ns = now_ns - scaled_ns
        return self._origin_ns + scaled_ns

    def scaled(self, span_ns: int) -> int:
        """How long something takes that took so long; 0 where nothing waits."""
        return int(span_ns / self.factor) if self.factor else 0

    async def until(self, due_ns: int, clock: Callable[[], int]) -> None:
        """Returns at once if that has passed."""
        while (left_ns := due_ns - clock()) > 0:  # noqa: ASYNC110 - the clock signals nobody
            await asyncio.sleep(self.sleep_s(left_ns))

    def sleep_s(self, left_ns: int) -> float:
        """How long to sleep where so much is left: then look again."""
        return max(0, left_ns - self._spun_ns) / 1e9
