"""Fair: a virtual token counter per tenant (Sheng et al., Fairness in Serving Large Language Models, 2024).

Each tenant has a counter of the service it got, and the waiting tenant with the lowest is admitted next. A
tenant that begins to wait is lifted to the lowest of those who wait (if nobody does, to that of the one who
did last), so idle time earns no credit.

Bound (the theorem there for backlogged clients). Take two tenants who both have requests waiting all through
an interval, and service as prompt_weight * prompt tokens + output_weight * output tokens, over the tenant's
weight. Theirs differ by at most 2 * max(prompt_weight * longest prompt, output_weight * M), where M is how
many tokens the sequences on the device can have together. A device that runs one request at a time thus keeps
them within two maximal requests of each other.

The counters say who is admitted next; slots say who need not wait until then: a tenant who would hold fewer
than another, at their weights, gets one of the other's at once, and his prompt goes on first.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter

from pipeline.core.policies.ranked_queue import RankedQueue
from pipeline.core.sequence import Sequence

by_arrival = attrgetter("arrived_ns", "request_id")

MAX_IDLE = 4096
"""Past so many counters, those of idle tenants that would be lifted anyway are forgotten."""


class FairOrder:
    """See the module. Inside a tenant, first come, first served.

    Args:
        weights: shares of tenants; a tenant of weight 2 gets twice the service of one of weight 1, which is
            the weight of those not named.
        prompt_weight, output_weight: what a prompt token and an output token cost.
    """

    def __init__(
        self, weights: Mapping[str, float], prompt_weight: float = 1.0, output_weight: float = 2.0
    ) -> None:
        self._weights = weights
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._counters: defaultdict[str, float] = defaultdict(float)
        self._queues: dict[str, RankedQueue] = {}
        """Of tenants with somebody waiting."""
        self._heap: list[tuple[float, str]] = []
        """An entry for each of these, of a counter that may have risen since."""
        self._last = ""
        """The tenant that stopped waiting last."""
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    @property
    def num_tenants(self) -> int:
        """Those with somebody waiting."""
        return len(self._queues)

    def service(self, tenant: str) -> float:
        """The tenant's counter."""
        return self._counters.get(tenant, 0.0)

    def push(self, sequence: Sequence) -> None:
        tenant = sequence.terms.tenant
        if tenant not in self._queues:
            self._lift(tenant)
        self._queues[tenant].push(sequence.arrived_ns, sequence)
        self._num_waiting += 1

    def take(self, sequence: Sequence) -> None:
        tenant = sequence.terms.tenant
        self.discard(sequence)
        if not sequence.epoch:  # what is computed again after a preemption is not charged again
            cost = self._prompt_weight * sequence.num_prompt_tokens + self._output_weight
            self._counters[tenant] += cost / self._weight(tenant)

    def discard(self, sequence: Sequence) -> None:
        tenant = sequence.terms.tenant
        queue = self._queues.get(tenant)
        if queue is None or sequence not in queue:
            return
        queue.discard(sequence)
        self._num_waiting -= 1
        if not queue:
            self._last = tenant
            del self._queues[tenant]

    def candidates(self, now_ns: int) -> Iterator[Sequence]:
        first = self._first()
        if first is None:
            return
        yield from self._queues[first]
        for tenant in sorted(self._queues.keys() - {first}, key=self._counters.__getitem__):
            yield from self._queues[tenant]

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        counters = self._counters
        return max(running, key=lambda each: (counters[each.terms.tenant], each.arrived_ns, each.request_id))

    def outranked(self, waiting: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
        """The latest of tenants who still hold more slots, at their weights, when each has changed hands.

        So what is taken cannot be taken back.
        """
        held = self._held(running)
        share = (held[waiting.terms.tenant] + 1) / self._weight(waiting.terms.tenant)
        spare = {tenant: num - math.ceil(share * self._weight(tenant)) for tenant, num in held.items()}
        spare.pop(waiting.terms.tenant, None)
        if max(spare.values(), default=0) <= 0:
            return []
        victims: list[Sequence] = []
        for sequence in sorted(running, key=by_arrival, reverse=True):
            if spare.get(sequence.terms.tenant, 0) > 0:
                spare[sequence.terms.tenant] -= 1
                victims.append(sequence)
        return victims

    def prefill_rank(self, running: Iterable[Sequence]) -> Callable[[Sequence], float]:
        """The tenant with the fewest slots, at its weight."""
        held = self._held(running)
        return lambda sequence: held[sequence.terms.tenant] / self._weight(sequence.terms.tenant)

    def served(self, decoding: list[Sequence]) -> None:
        for tenant, num_tokens in Counter([each.terms.tenant for each in decoding]).items():
            self._counters[tenant] += num_tokens * self._output_weight / self._weight(tenant)

    def _held(self, running: Iterable[Sequence]) -> Counter[str]:
        """Slots by tenant."""
        return Counter([each.terms.tenant for each in running])

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def _lift(self, tenant: str) -> None:
        """The tenant begins to wait."""
        first = self._first()
        floor = self._counters[self._last if first is None else first]
        self._forget(floor)
        self._counters[tenant] = max(self._counters[tenant], floor)
        self._queues[tenant] = RankedQueue()
        heappush(self._heap, (self._counters[tenant], tenant))

    def _first(self) -> str | None:
        """The waiting tenant with the lowest counter. Counters only rise, so a late entry is moved down."""
        if len(self._heap) > 2 * len(self._queues):
            self._heap = [(self._counters[tenant], tenant) for tenant in self._queues]
            heapify(self._heap)
        while self._heap:
            counter, tenant = self._heap[0]
            if tenant not in self._queues:
                heappop(self._heap)
            elif counter < self._counters[tenant]:
                heapreplace(self._heap, (self._counters[tenant], tenant))
            else:
                return tenant
        return None

    def _forget(self, floor: float) -> None:
        if len(self._counters) > MAX_IDLE + 2 * len(self._queues):
            kept = {t: c for t, c in self._counters.items() if c > floor or t in self._queues}
            self._counters = defaultdict(float, kept)
