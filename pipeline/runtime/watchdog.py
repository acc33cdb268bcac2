"""Watchdog: notices that a step does not end. One timer, whatever the number of steps."""

import asyncio
from collections.abc import Callable, Mapping


class Watchdog:
    """On the loop.

    Args:
        limit_s: longer takes no step that is alive; 0: nothing is watched.
        overdue: called once a step has taken so long, and no more until `clear`.
    """

    def __init__(self, limit_s: float, overdue: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._overdue = overdue
        self._begun_s: dict[int, float] = {}
        """By step, the oldest first."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, step_id: int) -> None:
        if not self._limit_s:
            return
        loop = asyncio.get_running_loop()
        self._begun_s[step_id] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._limit_s, self._look)

    @property
    def begun_s(self) -> dict[int, float]:
        """When each step began that has not ended, by the loop's clock; the oldest first."""
        return self._begun_s.copy()

    def go_on(self, begun_s: Mapping[int, float]) -> None:
        """Watch these, which another one has watched, and no others."""
        self.clear()
        if self._limit_s and begun_s:
            self._begun_s = dict(begun_s)
            self._timer = asyncio.get_running_loop().call_later(0, self._look)

    def end(self, step_id: int) -> None:
        """Steps that are not known are ignored."""
        self._begun_s.pop(step_id, None)

    def clear(self) -> None:
        """None of them will end."""
        self._begun_s.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if not self._begun_s:
            return
        loop = asyncio.get_running_loop()
        left_s = next(iter(self._begun_s.values())) + self._limit_s - loop.time()
        if left_s > 0:
            self._timer = loop.call_later(left_s, self._look)
        else:
            self.clear()
            self._overdue()
