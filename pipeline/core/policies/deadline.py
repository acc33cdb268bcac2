"""Deadline: least slack first, against targets for the first token (TTFT) and for each after it (TPOT)."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Annotated

import msgspec

from pipeline.core.policies.ranked import Ranked
from pipeline.core.policies.ranked_queue import RankedQueue
from pipeline.core.sequence import Sequence
from pipeline.core.step_cost import StepCost

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a client wants his tokens."""

    ttft_ms: Positive
    """From arrival to the first token."""
    tpot_ms: Positive
    """For each token after it."""


class DeadlineOrder(Ranked):
    """By the latest time at which a request can start and still be in time, by what steps have cost so far.

    That is the earlier of two: the first token's due time less the prefill, and the last one's due time (by
    the predicted length) less all steps until then. Steps are taken as those of an otherwise idle device, so
    a request past its time is too late for certain: it goes after all who are not, first come, first served.
    One that was preempted while it wrote goes first, by when its next token is due: somebody is reading.

    Args:
        default: for requests that name no targets and whose tenant is not in `classes`.
        classes: targets by tenant.
    """

    def __init__(self, default: Targets, classes: Mapping[str, Targets], cost: StepCost) -> None:
        self._default = default
        self._classes = classes
        self._cost = cost
        self._resumed, self._in_time, self._late = RankedQueue(), RankedQueue(), RankedQueue()

    def __len__(self) -> int:
        return len(self._resumed) + len(self._in_time) + len(self._late)

    def push(self, sequence: Sequence) -> None:
        if sequence.num_output_tokens:
            sequence.rank = self._due_ns(sequence, sequence.num_output_tokens)
            self._resumed.push(sequence.rank, sequence)
        else:
            sequence.rank = self.start_by_ns(sequence)
            self._in_time.push(sequence.rank, sequence)

    def take(self, sequence: Sequence) -> None:
        self.discard(sequence)

    def discard(self, sequence: Sequence) -> None:
        for queue in (self._resumed, self._in_time, self._late):
            queue.discard(sequence)

    def candidates(self, now_ns: int) -> Iterator[Sequence]:
        for sequence in self._in_time.pop_below(now_ns):
            self._late.push(sequence.arrived_ns, sequence)
        return chain(self._resumed, self._in_time, self._late)

    def start_by_ns(self, sequence: Sequence) -> int:
        """The latest start of a request without output that can still be in time."""
        last = sequence.predicted_tokens - 1
        prefill_ns = self._cost.predict_ns(sequence.num_prompt_tokens, 0, 0)
        step_ns = self._cost.predict_ns(0, 1, sequence.num_prompt_tokens)
        return int(
            min(
                self._due_ns(sequence, 0) - prefill_ns,
                self._due_ns(sequence, last) - prefill_ns - last * step_ns,
            )
        )

    def _due_ns(self, sequence: Sequence, index: int) -> int:
        """When output token `index` should be out."""
        terms = sequence.terms
        targets = self._classes.get(terms.tenant, self._default)
        ttft_ms = targets.ttft_ms if terms.ttft_target_ms is None else terms.ttft_target_ms
        tpot_ms = targets.tpot_ms if terms.tpot_target_ms is None else terms.tpot_target_ms
        return sequence.arrived_ns + int((ttft_ms + index * tpot_ms) * 1e6)
