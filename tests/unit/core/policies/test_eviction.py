"""Swap: when KV is kept, where, and how it gets back."""

from pipeline.core.host_places import BlockCopies, HostPlaces
from pipeline.core.policies.eviction import Recompute, Swap
from pipeline.core.step_cost import StepCost
from pipeline.messages import DeviceReady, FinishReason
from tests.scheduler_world import World, request, scheduler

NOTHING = BlockCopies([], [], [], [])


def device(num_blocks: int = 6, num_host_blocks: int = 20, block_copy_ns: int = 1) -> DeviceReady:
    return DeviceReady(num_blocks, 4, 4, 64, num_host_blocks=num_host_blocks, block_copy_ns=block_copy_ns)


def crowded(capacity: DeviceReady) -> World:
    """Two that need five blocks each in the end, and a device of six: one has to give way."""
    w = World(scheduler(capacity))
    w.add(request(0, prompt=8, max_tokens=12), request(1, prompt=8, max_tokens=12))
    return w


def eviction(w: World) -> Swap:
    swap = w.core.policies.eviction
    assert isinstance(swap, Swap)
    return swap


def test_without_host_memory_it_is_computed_again() -> None:
    w = crowded(device(num_host_blocks=0))
    w.run()
    assert isinstance(w.core.policies.eviction, Recompute)
    assert w.core.num_preemptions == 1


def test_what_is_kept_is_not_computed_again() -> None:
    again, kept = crowded(device(num_host_blocks=0)), crowded(device())
    again.run()
    kept.run()
    assert again.core.num_preemptions == kept.core.num_preemptions == eviction(kept).num_swaps == 1
    assert num_tokens(again) - num_tokens(kept) == 12
    assert kept.core.policies.eviction.gauges() == {"swaps_total": 1}
    assert kept.core.policies.host.gauges() == {
        "host_blocks": 20,
        "host_blocks_used": 0,
        "host_blocks_cached": 0,
    }


def test_where_host_memory_is_full_it_is_computed_again() -> None:
    w = crowded(device(num_host_blocks=2))
    w.run()
    assert w.core.num_preemptions == 1 and eviction(w).num_swaps == 0


def test_the_quicker_way_is_taken() -> None:
    for block_copy_ns, num_swaps in ((100, 1), (10**9, 0)):
        w = crowded(device(block_copy_ns=block_copy_ns))
        teach(w.core.policies.cost)
        w.run()
        assert w.core.num_preemptions == 1
        assert eviction(w).num_swaps == num_swaps


def teach(cost: StepCost | None) -> None:
    """A prefill token takes a millisecond."""
    assert cost is not None
    for count in range(1, 20):
        cost.observe(count, 0, count, count * 1_000_000)


def test_who_ends_while_he_is_away_leaves_nothing() -> None:
    w = crowded(device())
    until_swapped(w)
    places = w.core.policies.host.pool
    assert places.num_owned == 3
    w.core.cancel(1, FinishReason.CANCELLED)
    assert places.num_owned == 0
    w.run()
    assert eviction(w).num_swaps == 1


def test_a_place_that_is_given_up_before_the_plan_is_not_saved_to() -> None:
    host = HostPlaces(device())
    swap = Swap(device(), host, StepCost())
    w = crowded(device())
    w.step()
    first, second = w.core.residents.running.values()
    assert swap.evict(first) == swap.evict(second) == 8
    swap.discard(first)
    copies = host.seal(1)
    assert copies.saved_ids == second.blocks[:2] and len(copies.saved_places) == 2
    assert host.seal(2) == NOTHING and host.pool.num_owned == 2


def until_swapped(w: World) -> None:
    while not eviction(w).num_swaps:
        w.step()


def num_tokens(w: World) -> int:
    return sum(len(plan.token_ids) for plan in w.plans)
