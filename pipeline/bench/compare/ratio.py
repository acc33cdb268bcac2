"""Ratio: how many times as long b takes as a, from rounds in which both did the same.

The median of the rounds' ratios, and the interval between two of them that holds the true median at 95 % or
more: by order statistics, as for the sign test (Conover, Practical Nonparametric Statistics, 3.2). It needs
nothing of the noise but that rounds are disturbed by chance: one in which something else ran moves it by a
rank, where it would widen Student's interval, which also wants ratios that are normal. It is the same each
time it is computed, unlike a bootstrap's.
"""

from collections.abc import Sequence
from math import comb
from statistics import median

import msgspec

CONFIDENCE = 0.95
NOT_TOLD_APART = "not told apart"
MIN_ROUNDS = 6
"""Of fewer, not even the widest interval is that sure."""


class Ratio(msgspec.Struct, frozen=True):
    """Time of b / time of a."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`faster` and `slower` are of b, and said where the whole interval says so; else NOT_TOLD_APART."""
        if self.high < 1:
            return "faster"
        return "slower" if self.low > 1 else NOT_TOLD_APART


def ratio_of(ratios: Sequence[float]) -> Ratio:
    """Of MIN_ROUNDS rounds or more."""
    if len(ratios) < MIN_ROUNDS:
        raise ValueError(f"{len(ratios)} rounds: an interval needs {MIN_ROUNDS} or more")
    ranked = sorted(ratios)
    outside = _num_outside(len(ranked))
    return Ratio(median(ranked), ranked[outside], ranked[-1 - outside])


def _num_outside(num_rounds: int) -> int:
    """How many of the lowest may be left out, and as many of the highest."""
    tail, outside = 0.0, -1
    while (tail := tail + comb(num_rounds, outside + 1) / 2**num_rounds) <= (1 - CONFIDENCE) / 2:
        outside += 1
    return outside
