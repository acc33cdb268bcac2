"""Bypass: whether small requests may pass the first in the queue while it does not fit."""

from collections.abc import Iterator
from itertools import islice

from pipeline.core.sequence import Sequence

WINDOW = 16
"""How many behind the blocked one are looked at in a step."""


class Bypass:
    """At most `max_passes` others pass a blocked head, and none once it has been blocked for `max_ns`.

    After that nobody is admitted before it: blocks that become free stay so until it fits. Both counts are a
    request's own and are never reset, so being overtaken by a new head in between changes no bound.
    """

    def __init__(self, max_passes: int, max_ns: int, num_passes: int = 0) -> None:
        self.num_passes = num_passes
        """So far."""
        self._max_passes = max_passes
        self._max_ns = max_ns

    def behind(self, head: Sequence, others: Iterator[Sequence], now_ns: int) -> Iterator[Sequence]:
        """Those who may pass `head`, which does not fit; the first of them that fits should."""
        head.blocked_ns = head.blocked_ns or now_ns
        if head.num_passed >= self._max_passes or now_ns - head.blocked_ns >= self._max_ns:
            return iter(())
        return islice(others, WINDOW)

    def passed(self, head: Sequence) -> None:
        """One of them was admitted."""
        head.num_passed += 1
        self.num_passes += 1
