"""Waiting: the sequences without a slot."""

from collections.abc import Iterable

from pipeline.core.policies import Policies
from pipeline.core.policies.contracts import Order
from pipeline.core.residents import Residents
from pipeline.core.sequence import Sequence


class Waiting:
    """Keeps them where the policies can find them: in their order, and until they are shed.

    Paused ones, and those that wait for the disk, are held out of the order; they keep their place, for it is
    theirs by when they arrived.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    @property
    def _order(self) -> Order:
        return self._policies.order

    @property
    def num_eligible(self) -> int:
        """Those that are not held out of the order."""
        return len(self._order)

    def push(self, sequence: Sequence) -> None:
        """It has no slot from now on: it is new, or was preempted."""
        if not sequence.is_held_out:
            self._order.push(sequence)
        self._policies.shedding.push(sequence)

    def take(self, sequence: Sequence) -> None:
        """It is admitted."""
        self._order.take(sequence)
        self._policies.shedding.discard(sequence)

    def discard(self, sequence: Sequence) -> None:
        """It has ended."""
        self._order.discard(sequence)
        self._policies.shedding.discard(sequence)
        self._policies.eviction.discard(sequence)

    def pause(self, sequence: Sequence) -> None:
        """`is_paused` has changed."""
        if sequence.is_paused:
            self._order.discard(sequence)
        elif not sequence.is_fetching:
            self._order.push(sequence)

    def fetched(self, sequence: Sequence) -> None:
        """It need wait for the disk no more."""
        sequence.is_fetching = False
        if not sequence.is_paused:
            self._order.push(sequence)

    def go_by(self, others: Policies, live: Iterable[Sequence]) -> None:
        """The policies become others: queue all up anew, waiting or not, so that each has its rank."""
        is_new_order = others.order is not self._order
        is_new_length = others.lengths is not self._policies.lengths
        self._policies.become(others)
        for sequence in live:
            if is_new_length and not sequence.num_output_tokens:
                others.lengths.predict(sequence)
            if is_new_order and (sequence.slot >= 0 or not sequence.is_held_out):
                self._order.push(sequence)
            if sequence.slot < 0:
                self._policies.shedding.push(sequence)
            elif is_new_order:
                self._order.discard(sequence)

    def head(self, now_ns: int) -> Sequence | None:
        """The first in order."""
        return next(self._order.candidates(now_ns), None)

    def admissible(self, residents: Residents, now_ns: int) -> Sequence | None:
        """The first in order if it fits, else the first behind it that may pass it and fits."""
        if not residents.num_free_slots:
            return None
        candidates = self._order.candidates(now_ns)
        head = next(candidates, None)
        if head is None or residents.fits(head):
            return head
        bypass = self._policies.bypass
        for sequence in bypass.behind(head, candidates, now_ns):
            if residents.fits(sequence):
                bypass.passed(head)
                return sequence
        return None
