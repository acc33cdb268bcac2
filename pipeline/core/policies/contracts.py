"""What the scheduler leaves to others: one Protocol for each question it asks.

The scheduler owns sequences, blocks and steps, and is right under any answer: blocks are conserved, every
request ends once, and its tokens do not depend on when they were computed. A policy decides only who goes
first and how much of a step he gets. All are called from one thread and given the time; none may keep a
sequence past the call that says it is gone.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from pipeline.core.sequence import Sequence


@runtime_checkable
class Order(Protocol):
    """Holds the waiting sequences; says who of them is next, and who of the running gives way."""

    def __len__(self) -> int: ...

    def push(self, sequence: Sequence) -> None:
        """It waits from now on: it is new, was preempted (epoch > 0), or is no longer paused."""
        ...

    def take(self, sequence: Sequence) -> None:
        """It waits no more, for it is admitted."""
        ...

    def discard(self, sequence: Sequence) -> None:
        """It waits no more, for it ended or is paused. A no-op for one that does not wait."""
        ...

    def candidates(self, now_ns: int) -> Iterator[Sequence]:
        """All that wait, whoever is to be admitted first coming first; nobody is taken out.

        Lazy: few are looked at, whatever the number of those who wait. Valid until the next push.
        """
        ...

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """Who of these (one at least) is to be preempted first. O(running)."""
        ...

    def outranked(self, waiting: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
        """Who of these may be sent back to the queue so that `waiting` can start, first victim first.

        Never both ways between two sequences, else they would preempt each other in turns.
        """
        ...

    def prefill_rank(self, running: Iterable[Sequence]) -> Callable[[Sequence], float]:
        """Whose prompt a step goes on with first: the smallest; equals in the order of their admission.

        Given those on the device. The first in order, if it ranks before all prompts, is admitted before
        these go on.
        """
        ...

    def served(self, decoding: list[Sequence]) -> None:
        """Each of these computes one output token in the step that is being planned."""
        ...


class Batching(Protocol):
    """Says when waiting sequences may join those on the device."""

    @property
    def wake_ns(self) -> int | None:
        """When `opens` will answer otherwise although nothing happened; None: never."""
        ...

    def opens(self, num_running: int, num_waiting: int, now_ns: int) -> bool:
        """Whether any may join the step that is being planned; asked for every step."""
        ...

    def joined(self, sequence: Sequence) -> None:
        """It is admitted."""
        ...

    def filled(self) -> None:
        """Of those who wait, none fits beside those already there."""
        ...

    def num_padding(self, num_running: int) -> int:
        """Tokens that the step just planned would compute for nothing, were its batch padded."""
        ...


class PrefillBudget(Protocol):
    """Says how much prefill a step may carry beside its decode rows."""

    def max_tokens(self, num_decode_tokens: int, num_kv_tokens: int) -> int:
        """The most prefill tokens of a step with these decode rows; at least 1, so that prompts progress."""
        ...


class Eviction(Protocol):
    """Says what becomes of a preempted sequence's KV."""

    def evict(self, sequence: Sequence) -> int:
        """Its blocks are about to be freed. How many of its tokens' KV `restore` will bring back.

        From the first on, and fewer than `len(token_ids)`: results still in flight are lost.
        """
        ...

    def restore(self, sequence: Sequence) -> None:
        """It is admitted (for the first time, or again) and has new blocks for all its tokens."""
        ...

    def discard(self, sequence: Sequence) -> None:
        """It ended while it waited. What was kept of it is not needed."""
        ...

    def gauges(self) -> dict[str, float]:
        """What of it is to be seen in the metrics."""
        ...
