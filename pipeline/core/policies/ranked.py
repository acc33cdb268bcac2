"""Ranked: what orders by `Sequence.rank` have in common: the last in order gives way, and to growth alone."""

from collections.abc import Callable, Iterable
from operator import attrgetter

from pipeline.core.sequence import Sequence

by_rank = attrgetter("rank", "request_id")


def no_rank(sequence: Sequence) -> float:
    """All alike: prompts go on in the order of their admission."""
    return 0.0


class Ranked:
    """Half of an Order. No waiting sequence outranks a running one, and nobody counts who is served."""

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        return max(running, key=by_rank)

    def outranked(self, waiting: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
        return []

    def prefill_rank(self, running: Iterable[Sequence]) -> Callable[[Sequence], float]:
        return no_rank

    def served(self, decoding: list[Sequence]) -> None:
        return None
