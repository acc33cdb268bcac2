"""What the runs at one rate say. Pure."""

import math
from collections.abc import Sequence

import msgspec

from loadgen.record import Record
from loadgen.slo import Slo


class Vote(msgspec.Struct, frozen=True):
    """One run at one rate."""

    seed: int
    broken: list[str]
    """Why the objective is not held, in words; empty if it is."""
    client_bound: list[str]
    """Why it is no evidence: the generator was the bound. Empty if it is evidence."""
    values_ms: dict[str, float]
    """Of each limited metric, at the objective's percentile, of finished requests only."""
    num_requests: int
    rate_per_s: float | None
    """As the arrivals were drawn."""
    wall_s: float
    is_cut: bool = False
    """Stopped early, since it could no longer hold."""

    @property
    def holds(self) -> bool:
        return not self.broken

    @property
    def counts(self) -> bool:
        return not self.client_bound


class Verdict(msgspec.Struct, frozen=True):
    """Of all runs at one rate."""

    rate: float
    votes: list[Vote]

    @property
    def evidence(self) -> list[Vote]:
        return [vote for vote in self.votes if vote.counts]

    @property
    def num_held(self) -> int:
        return sum(vote.holds for vote in self.evidence)

    @property
    def num_broken(self) -> int:
        return len(self.evidence) - self.num_held

    @property
    def holds(self) -> bool | None:
        """By majority; a tie is against the rate. None: there is no evidence."""
        return self.num_held > self.num_broken if self.evidence else None

    def is_decided(self, repeats: int) -> bool:
        """True when no run more is needed.

        To be believed a rate takes all `repeats`; half of them broken is enough to deny it the majority.
        Runs that are no evidence are repeated, `repeats` times in all.
        """
        num_void = len(self.votes) - len(self.evidence)
        return len(self.evidence) >= repeats or 2 * self.num_broken >= repeats or num_void > repeats


def rank(percentile: float, count: int) -> int:
    """The nearest rank, from 1: so many of `count` must be within a limit for the percentile to be."""
    return max(1, math.ceil(percentile / 100 * count))


def values_ms(slo: Slo, percentile: float, records: Sequence[Record]) -> dict[str, float]:
    """Of each limited metric, the percentile over finished requests."""
    finished = [record for record in records if record.is_finished]
    found = {name: sorted(_values_s(name, finished)) for name in slo.limits_ms}
    return {name: 1000 * each[rank(percentile, len(each)) - 1] for name, each in found.items() if each}


def lost(
    slo: Slo, percentile: float, records: Sequence[Record], num_planned: int, now_s: float
) -> str | None:
    """Why the objective cannot be held any more, whatever follows; None while it still can be.

    No estimate: once more requests than the percentile allows are over a limit (have failed, or have
    waited that long already), the percentile of all planned ones is over it too.
    """
    allowed = num_planned - rank(percentile, num_planned)
    failed = sum(record.failure is not None for record in records)
    if failed > allowed:
        return f"{failed} of {num_planned} requests have failed, {allowed} may"
    for name in ("ttft", "e2e"):
        limit_ms = slo.limits_ms.get(name, math.inf)
        over = sum(_is_over(name, record, limit_ms / 1000, now_s) for record in records)
        if over > allowed:
            return f"{over} of {num_planned} requests are over {name.upper()} {limit_ms:g} ms, {allowed} may"
    return None


def _values_s(name: str, finished: list[Record]) -> list[float]:
    if name == "itl":
        return [gap for record in finished for gap in record.itl_s]
    values = (getattr(record, f"{name}_s") for record in finished)
    return [value for value in values if value is not None]


def _is_over(name: str, record: Record, limit_s: float, now_s: float) -> bool:
    """True if the request's time is over the limit, or will be, since it has waited longer already."""
    if record.failure is not None:
        return True
    if record.closed_s is None and (name == "e2e" or not record.chunk_s):
        return now_s - record.intended_s > limit_s
    value_s: float | None = getattr(record, f"{name}_s")
    return value_s is not None and value_s > limit_s
