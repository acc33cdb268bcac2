"""Orders with a static rank: first come, priority, shortest first.

Each rank is a virtual arrival time: the real one, moved by what the policy grants or charges the request. As
everybody ages at the same rate, who is before whom never changes while they wait, so a heap suffices.

Bound. Let the shifts of all requests lie in [low, high]. A request that arrived at t and is moved by s has
rank t + s. One that arrives after t + s - low has a higher rank and is never admitted before it (but for the
bounded bypass). So a request is passed only by those that arrive less than s - low <= high - low after it:
whatever the load, from then on it stands before all newcomers, and waits only for the finite work that was
before it.

* fcfs      s = 0: passed by nobody.
* priority  s = -ageing * priority: waiting for `ageing` makes up for one level. One of priority p is passed
            only by those that arrive less than (highest - p) * ageing after it.
* sjf       score = predicted - a * wait, tokens of work: s = predicted / a. Passed only by those that arrive
            less than (predicted - least) / a after it, where the least work that there is, is over 1.
"""

from collections.abc import Callable, Iterable, Iterator

from pipeline.core.policies.ranked import Ranked, by_rank
from pipeline.core.policies.ranked_queue import RankedQueue
from pipeline.core.sequence import Sequence

Shift = Callable[[Sequence], int]
"""How much later, in ns, a request counts as arrived; less than 0 is earlier."""


def no_shift(sequence: Sequence) -> int:
    """First come, first served."""
    return 0


def priority_shift(ageing_ns: int) -> Shift:
    """Terms.priority; waiting for `ageing_ns` makes up for one level."""
    return lambda sequence: -ageing_ns * sequence.terms.priority


def work_shift(tokens_per_s: float, prompt_weight: float) -> Shift:
    """Least predicted work first; a second of waiting makes up for `tokens_per_s` tokens of work.

    Work is the predicted answer, and `prompt_weight` for each prompt token.
    """
    ns_per_token = 1e9 / tokens_per_s
    return lambda each: int(ns_per_token * (each.predicted_tokens + prompt_weight * each.num_prompt_tokens))


class KeyedOrder(Ranked):
    """By `arrived_ns + shift`. The running one with the highest rank gives way first."""

    def __init__(self, shift: Shift = no_shift) -> None:
        self._shift = shift
        self._queue = RankedQueue()

    def __len__(self) -> int:
        return len(self._queue)

    def push(self, sequence: Sequence) -> None:
        sequence.rank = sequence.arrived_ns + self._shift(sequence)
        self._queue.push(sequence.rank, sequence)

    def take(self, sequence: Sequence) -> None:
        self._queue.discard(sequence)

    def discard(self, sequence: Sequence) -> None:
        self._queue.discard(sequence)

    def candidates(self, now_ns: int) -> Iterator[Sequence]:
        return iter(self._queue)


class PriorityOrder(KeyedOrder):
    """KeyedOrder by priority. Age moves a request ahead in the queue, but only priority preempts."""

    def __init__(self, ageing_ns: int) -> None:
        super().__init__(priority_shift(ageing_ns))

    def outranked(self, waiting: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
        lower = [each for each in running if each.terms.priority < waiting.terms.priority]
        return sorted(lower, key=by_rank, reverse=True)

    def prefill_rank(self, running: Iterable[Sequence]) -> Callable[[Sequence], float]:
        return lambda sequence: -sequence.terms.priority
