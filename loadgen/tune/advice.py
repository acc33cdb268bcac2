"""Which value to take, what it costs elsewhere, and where a larger one stops paying. Pure.

Two cells differ in a measure only if their means do by more than a threshold and by more than their noise,
which is half of each one's range over its repeats, added. All else is called equal.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from loadgen.tune.cells import Value, same, text
from loadgen.tune.chain import segments
from loadgen.tune.store import CellResult

TTFT = "TTFT p99 ms"
COSTS = (
    "output tok/s",
    "goodput %",
    "TTFT p50 ms",
    TTFT,
    "ITL p50 ms",
    "ITL p99 ms",
    "TPOT p99 ms",
    "E2E p50 ms",
    "E2E p99 ms",
    "KV peak %",
    "RSS peak MiB",
)
"""What a choice is held against, where it changes."""


class Stat(msgspec.Struct, frozen=True):
    """A measure over a cell's repeats."""

    mean: float
    half_range: float


class Point(msgspec.Struct, frozen=True):
    """One value of the variable, and what came of it."""

    value: Value
    result: CellResult
    is_base: bool

    def stat(self, measure: str) -> Stat | None:
        """None if no repeat has it."""
        values = [r.measures[measure] for r in self.result.evidence if measure in r.measures]
        return Stat(fmean(values), (max(values) - min(values)) / 2) if values else None

    @property
    def measures(self) -> dict[str, float]:
        """The means of all measures."""
        names = dict.fromkeys(name for repeat in self.result.evidence for name in repeat.measures)
        stats = {name: self.stat(name) for name in names}
        return {name: stat.mean for name, stat in stats.items() if stat is not None}


class Advice(msgspec.Struct, frozen=True):
    """For one variable."""

    take: Value
    sentences: list[str]


def change(base: Point, other: Point, measure: str, threshold: float) -> float | None:
    """By which share `other` differs from `base`: 0.0 if it is equal, infinite from nothing to something.

    None if one of them does not have the measure.
    """
    one, two = base.stat(measure), other.stat(measure)
    if one is None or two is None:
        return None
    share = _share(one, two)
    return share if abs(share) > max(threshold, noise(one, two)) else 0.0


def noise(one: Stat, other: Stat) -> float:
    """By which share of `one` they differ for no reason that is known."""
    return (one.half_range + other.half_range) / abs(one.mean) if one.mean else 0.0


def _share(one: Stat, other: Stat) -> float:
    if one.mean:
        return other.mean / one.mean - 1
    return math.inf if other.mean else 0.0


def advise(key: str, points: Sequence[Point], objective: str, threshold: float) -> Advice | None:
    """None if the base, or every other value, has no result."""
    usable = [point for point in points if point.stat(objective) is not None]
    base = next((point for point in usable if point.is_base), None)
    if base is None or len(usable) < 2:
        return None
    take = _choose(usable, base, objective, threshold)
    sentences = [_verdict(key, base, take, objective, threshold)]
    if all(_is_number(point.value) for point in usable):
        sentences.append(_where_it_stops(key, usable, objective, threshold))
    return Advice(take.value, sentences)


def grew_most(base: Point, other: Point) -> tuple[str, float] | None:
    """The segment whose mean time grew most, and by how many ms; None if none grew or is known."""
    before, after = segments(base.measures), segments(other.measures)
    growth = {name: ms - before.get(name, 0.0) for name, ms in after.items()}
    name = max(growth, key=growth.__getitem__, default=None)
    return None if name is None or growth[name] <= 0 else (name, growth[name])


def _choose(usable: Sequence[Point], base: Point, objective: str, threshold: float) -> Point:
    """Of the values that are equal to the best: the base, unless another has a lower TTFT p99.

    Where the base is not among them, the one that is nearest to it stands in its place.
    """
    best = max(usable, key=lambda point: _mean(point, objective))
    equal = [point for point in usable if not (change(best, point, objective, threshold) or 0.0) < 0]
    near = base if base in equal else min(equal, key=lambda point: _distance(usable, point, base))
    faster = [point for point in equal if (change(near, point, TTFT, threshold) or 0.0) < 0]
    return min(faster, key=lambda point: _mean(point, TTFT), default=near)


def _distance(usable: Sequence[Point], one: Point, other: Point) -> int:
    """In places; values stand in order where they are numbers."""
    return abs(usable.index(one) - usable.index(other))


def _verdict(key: str, base: Point, take: Point, objective: str, threshold: float) -> str:
    if take is base:
        return (
            f"{key}: keep {text(base.value)}: no other value has more {_plain(objective)}, or as much and a "
            f"lower TTFT p99, beyond noise and {threshold:.0%}"
        )
    changes = {name: change(base, take, name, threshold) for name in dict.fromkeys((objective, *COSTS))}
    told = [f"{share:+.0%} {_plain(name)}" for name, share in changes.items() if share]
    grown = grew_most(base, take)
    segment = f"; the segment that grew most: {grown[0]}, +{grown[1]:.1f} ms a request" if grown else ""
    return f"{key} = {text(take.value)}: {', '.join(told)}, against {text(base.value)}{segment}"


def _where_it_stops(key: str, usable: Sequence[Point], objective: str, threshold: float) -> str:
    """The smallest value that no larger one beats."""
    ordered = sorted(usable, key=lambda point: float(point.value))
    stop = next(
        point
        for i, point in enumerate(ordered)
        if not any((change(point, later, objective, threshold) or 0.0) > 0 for later in ordered[i + 1 :])
    )
    if stop is ordered[-1]:
        return f"{key}: a larger value still pays at {text(stop.value)}, the largest tried: try more"
    following = ordered[ordered.index(stop) + 1]
    one, two = _known(stop, objective), _known(following, objective)
    return (
        f"{key}: past {text(stop.value)} a larger value stops paying: {text(following.value)} gives "
        f"{_share(one, two):+.1%} {_plain(objective)} (noise {noise(one, two):.0%}), and no larger one more "
        f"than {threshold:.0%} and its noise"
    )


def _known(point: Point, measure: str) -> Stat:
    stat = point.stat(measure)
    if stat is None:
        raise ValueError(f"{text(point.value)} has no {measure}")
    return stat


def _plain(measure: str) -> str:
    """Without its unit, where a share is told."""
    return measure.removesuffix(" ms").removesuffix(" %").removesuffix(" MiB")


def _mean(point: Point, measure: str) -> float:
    stat = point.stat(measure)
    return math.inf if stat is None else stat.mean


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def points_of(
    values: Sequence[Value], results: Callable[[Value], CellResult], base_value: Value
) -> list[Point]:
    """One per value: numbers in order, all else as it was given."""
    ordered = sorted(values, key=_as_number) if all(map(_is_number, values)) else list(values)
    return [Point(value, results(value), same(value, base_value)) for value in ordered]


def _as_number(value: Value) -> float:
    return float(value)
