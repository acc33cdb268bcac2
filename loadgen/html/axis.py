"""Scales: from values to places on a plot, and where the labels go."""

import math
from collections.abc import Iterator
from itertools import count

import msgspec

SIDE = 1000.0
"""A plot is SIDE by SIDE, stretched to whatever place it gets."""


class Axis(msgspec.Struct, frozen=True):
    """From `low` to `high`; the places of values outside are cut to the ends."""

    low: float
    high: float
    is_log: bool = False
    """Needs `low` over 0."""

    def place(self, value: float) -> float:
        """0 to SIDE."""
        return SIDE * min(1.0, max(0.0, self._part(value)))

    def ticks(self) -> list[tuple[float, str]]:
        """(place, label) of round values."""
        values = list(self._log_ticks() if self.is_log else self._linear_ticks())
        return [(self.place(value), short(value)) for value in values]

    def _part(self, value: float) -> float:
        if not self.is_log:
            return (value - self.low) / (self.high - self.low)
        return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)

    def _linear_ticks(self) -> Iterator[float]:
        step = round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        return (number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1))

    def _log_ticks(self) -> Iterator[float]:
        """1, 2, 5 of each power of ten, or the powers alone where these would crowd."""
        decades = math.log10(self.high / self.low)
        factors = (1, 2, 5) if decades <= 2 else (1, 3) if decades <= 3 else (1,)
        for power in count(math.floor(math.log10(self.low))):
            for factor in factors:
                value = factor * 10.0**power
                if value > self.high * (1 + 1e-9):
                    return
                if value >= self.low * (1 - 1e-9):
                    yield value


def from_zero(values: list[float]) -> Axis:
    """Linear, from 0 to a little over the largest value."""
    return Axis(0.0, max(values, default=0.0) * 1.05 or 1.0)


def fitted(values: list[float]) -> Axis:
    """Logarithmic if the values (0 or more) span over a factor of 20, else linear from zero."""
    positive = [value for value in values if value > 0]
    if not positive or max(positive) <= 20 * min(positive):
        return from_zero(values)
    return Axis(min(positive) / 1.05, max(positive) * 1.05, is_log=True)


def round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, at least `least`, which is over 0."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def short(value: float) -> str:
    """For a label: no more than four digits; thousands and millions as k and M."""
    for limit, suffix in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if suffix == 'k' else 1e6):.4g}{suffix}"
    return f"{value:.4g}"
