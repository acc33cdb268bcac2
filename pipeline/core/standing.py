"""Standing: how much of the queue goes before a newcomer, under each order.

Asked by the gate with two measures, shares of the device and prompt tokens, so it knows only sums. Ageing is
left out: it moves requests of the same standing by a bounded time, whatever the queue.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Claim(NamedTuple):
    """What orders tell requests apart by."""

    tenant: str
    priority: int
    length: int
    """Of the answer to expect: bits of its number of tokens."""


Queued = Mapping[Claim, float]
Standing = Callable[[Claim, float, Queued], float]
"""(its claim, what it asks for, what is queued by claim) -> how much of that goes before it."""


def by_arrival(claim: Claim, amount: float, queued: Queued) -> float:
    """All of it."""
    return sum(queued.values())


def by_priority(claim: Claim, amount: float, queued: Queued) -> float:
    """What is of the same priority or a higher one."""
    return sum(each for other, each in queued.items() if other.priority >= claim.priority)


def by_length(claim: Claim, amount: float, queued: Queued) -> float:
    """What is no longer than it."""
    return sum(each for other, each in queued.items() if other.length <= claim.length)


class ByFairShare:
    """All of its own tenant's, and of every other tenant's as much as is served meanwhile, at their weights.

    So whoever sends little is before the queue of one who sends much.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    def __call__(self, claim: Claim, amount: float, queued: Queued) -> float:
        by_tenant: defaultdict[str, float] = defaultdict(float)
        for other, each in queued.items():
            by_tenant[other.tenant] += each
        own = by_tenant.pop(claim.tenant, 0.0)
        meanwhile = (own + amount) / self._weight(claim.tenant)
        return own + sum(min(each, meanwhile * self._weight(tenant)) for tenant, each in by_tenant.items())

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)


def standing_of(policy: str, weights: Mapping[str, float]) -> Standing:
    """Of `[stages.schedule.options]` policy and fair_weights. Orders of others are taken to be by arrival."""
    standings: dict[str, Standing] = {
        "priority": by_priority,
        "sjf": by_length,
        "fair": ByFairShare(weights),
    }
    return standings.get(policy, by_arrival)
