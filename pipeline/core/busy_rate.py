"""BusyRate: how much gets done per second while there is more to do than can be done at once."""

import math


class BusyRate:
    """Work over the time in which it was held up; both fade, so that the rate follows the load.

    Idle time does not count: a server that served little because little came is not slow.
    """

    def __init__(self) -> None:
        self.num_done = 0
        """Pieces of work counted so far."""
        self._fresh = 0.0
        self._amount = 0.0
        self._busy_ns = 0.0

    @property
    def per_ns(self) -> float:
        """0.0 before anything was counted."""
        return self._amount / self._busy_ns if self._busy_ns else 0.0

    def pass_time(self, elapsed_ns: int, memory_ns: int) -> None:
        """So much busy time has passed, with what was counted in it. `memory_ns` later it weighs 1/e."""
        keep = math.exp(-elapsed_ns / memory_ns)
        self._amount, self._fresh = self._amount * keep + self._fresh, 0.0
        self._busy_ns = self._busy_ns * keep + elapsed_ns

    def count(self, amount: float) -> None:
        """So much was done since time last passed."""
        self._fresh += amount
        self.num_done += 1
