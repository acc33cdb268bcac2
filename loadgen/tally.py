"""Percentiles of a stream of values in little memory: counts in buckets that are 2 % wide."""

import math
from collections import Counter

_WIDTH = math.log(1.02)


class Tally:
    """Values are positive; what is not counts as 1 us. A percentile is right to 1 %."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, value_s: float) -> None:
        self._counts[math.floor(math.log(max(value_s, 1e-6)) / _WIDTH)] += 1

    @property
    def count(self) -> int:
        return self._counts.total()

    def percentile(self, percent: float) -> float | None:
        """Of nearest rank; None if there are no values."""
        left = percent / 100 * self.count
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return math.exp((bucket + 0.5) * _WIDTH)
        return None
