"""Shedding: when a request that waits in vain is dropped.

Serving first come, first served and dropping whoever's age passes half his patience keeps goodput at 0.97
of capacity at 1.5 times the load it can bear (simulated; patience 2 s), where an unbounded queue gets 0.03:
what is served is still wanted.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

from pipeline.core.gate import allowed_wait_ns
from pipeline.core.policies.ranked_queue import RankedQueue
from pipeline.core.sequence import Sequence
from pipeline.messages import Rejected


class Limit(NamedTuple):
    """One reason to drop a waiting request."""

    code: str
    reason: str
    drop_ns: Callable[[Sequence], int | None]
    """When it is dropped unless it was admitted; None: never."""


def patience(max_wait_ns: int | None) -> Limit:
    """As long as the door lets a request wait; see core.gate."""

    def drop_ns(sequence: Sequence) -> int | None:
        allowed_ns = allowed_wait_ns(sequence.terms, max_wait_ns)
        return None if allowed_ns is None else sequence.arrived_ns + allowed_ns

    return Limit("wait_too_long", "it may wait no longer", drop_ns)


class Shedding:
    """Requests that wait and have no row yet, by the time at which the first of the limits drops them."""

    def __init__(self, limits: Seq[Limit], num_shed: int = 0) -> None:
        self.num_shed = num_shed
        """So far."""
        self._limits = limits
        self._queue = RankedQueue()

    @property
    def wake_ns(self) -> int | None:
        """When the next is dropped."""
        return self._queue.first_key()

    def push(self, sequence: Sequence) -> None:
        """It begins to wait."""
        times_ns = [at_ns for each in self._limits if (at_ns := each.drop_ns(sequence)) is not None]
        if times_ns and not sequence.is_started:
            self._queue.push(min(times_ns), sequence)

    def discard(self, sequence: Sequence) -> None:
        """It waits no more."""
        self._queue.discard(sequence)

    def expired(self, now_ns: int) -> Iterator[tuple[Sequence, Rejected]]:
        """Those whose time has come, taken out, and the answer to each."""
        for sequence in self._queue.pop_below(now_ns + 1):
            self.num_shed += 1
            yield sequence, self._rejection(sequence, now_ns)

    def _rejection(self, sequence: Sequence, now_ns: int) -> Rejected:
        limit = min(self._limits, key=lambda each: each.drop_ns(sequence) or now_ns + 1)
        waited_ms = (now_ns - sequence.arrived_ns) // 1_000_000
        return Rejected(
            sequence.request_id,
            f"This request waited {waited_ms} ms for the device, and {limit.reason}. Try again later.",
            status=503,
            param=None,
            code=limit.code,
        )
