"""What holds of the places in host memory at any time, whoever uses them."""

from collections import Counter

from pipeline.core.policies.eviction import Swap
from pipeline.core.scheduling import Scheduler


def assert_places_are_conserved(scheduler: Scheduler, on_the_move: list[int]) -> None:
    """A place has as many holders as uses: swapped sequences, copies of plans, moves of the disk."""
    host, eviction = scheduler.policies.host, scheduler.policies.eviction
    kept = eviction._kept if isinstance(eviction, Swap) else {}
    held = [*(place for places in kept.values() for place in places), *on_the_move]
    held += [*host._saves, *(place for place, _ in host._loads)]
    held += [place for _, saved, loaded in host._flying for place in (*saved, *loaded)]
    holders = Counter(held)
    assert [host.pool.num_holders(place) for place in range(host.pool.num_blocks)] == [
        holders[place] for place in range(host.pool.num_blocks)
    ]
    assert set(kept) <= {k for k, each in scheduler._live.items() if each.slot < 0}


def assert_places_are_free(scheduler: Scheduler, on_the_move: list[int]) -> None:
    """Of an idle scheduler, but for what its next plan would save."""
    host = scheduler.policies.host
    assert host.pool.num_owned == len({*on_the_move, *host._saves})
