"""Eviction: what becomes of a preempted sequence's KV."""

from pipeline.core.sequence import Sequence


class Recompute:
    """It is thrown away; all tokens known so far are computed anew when the sequence is admitted again."""

    def evict(self, sequence: Sequence) -> int:
        return 0

    def restore(self, sequence: Sequence) -> None:
        return None

    def discard(self, sequence: Sequence) -> None:
        return None
