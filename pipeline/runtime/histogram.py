"""Histogram: counts of values in fixed buckets, at 0.2 us a value; what the hot path can afford.

Values are integers in their own unit (ns, messages, tokens); whoever shows them scales them. Single thread.
"""

from bisect import bisect_left
from collections.abc import Sequence

DURATIONS_NS = tuple(
    round(seconds * 1e9)
    for seconds in (
        *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
        *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
    )
)
"""From 100 us, so that a stage that costs nothing shows as such and a queue of milliseconds does not hide."""

SIZES = tuple(1 << power for power in range(13))
"""Of batches and of steps: 1 to 4096."""


class Histogram:
    """`counts[i]` values were at most `bounds[i]` and more than the bound before; the last had no bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[int] = DURATIONS_NS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0
        """The sum of all values, each as often as it counts."""

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: int, weight: int = 1) -> None:
        """Count `value` as if it had been seen `weight` times."""
        self.counts[bisect_left(self.bounds, value)] += weight
        self.total += value * weight


def merged(histograms: Sequence[Histogram]) -> Histogram:
    """All values of one or more histograms with the same bounds."""
    result = Histogram(histograms[0].bounds)
    for histogram in histograms:
        result.total += histogram.total
        result.counts = [a + b for a, b in zip(result.counts, histogram.counts, strict=True)]
    return result
