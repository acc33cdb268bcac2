"""Steps alike: the only place where the simulator reaches into the scheduler instead of calling it.

While nobody joins or leaves and every running sequence decodes, each plan is the one before with every
context a token longer. `num_alike` says for how many more plans that holds, `skip` puts the scheduler where
so many calls of `apply` and `plan` would. tests/property/test_fast_forward.py holds both against those calls.

What policies learn from steps, they are told of each (replica.py): only the planning is skipped.
"""

from collections.abc import Callable
from itertools import repeat

from pipeline.core.block_pool import blocks_for
from pipeline.core.policies.fair import FairOrder
from pipeline.core.policies.keyed import KeyedOrder
from pipeline.core.scheduling import Scheduler
from pipeline.messages import StepPlan
from pipeline.simulate.workload import TOKEN

WORKER = 0
"""The only one: workers that take turns are not skipped for."""


def num_alike(scheduler: Scheduler, first: StepPlan, second: StepPlan, now_ns: int) -> int:
    """How many plans after the two in flight have the same rows, one token each, as long as none ends.

    0 if that cannot be said. When one ends, only the caller knows.
    """
    running = scheduler.residents.running
    if scheduler.residents.num_dropping:
        return 0  # each plan drops what it likes
    if not len(first.token_ids) == len(second.token_ids) == len(running) or not running:
        return 0
    if first.request_ids != second.request_ids or first.num_tokens != second.num_tokens:
        return 0
    if len(second.slots) != len(running) or not _is_closed(scheduler, now_ns):
        return 0
    # each row takes a block at most every block_size steps, and one more
    return (scheduler.pool.num_free // len(running) - 1) * scheduler.device.block_size


def _is_closed(scheduler: Scheduler, now_ns: int) -> bool:
    """Whether none of those who wait can join, however long the same rows go on."""
    policies = scheduler.policies
    num_queued = len(policies.order)
    if not num_queued:
        return True
    if not isinstance(policies.order, KeyedOrder | FairOrder):
        return False  # it may think otherwise as time passes
    if isinstance(policies.order, FairOrder) and policies.order.num_tenants > 1:
        return False  # as counters grow, another tenant is first, who may outrank others
    if not scheduler.residents.num_free_slots:
        return True
    return not policies.batching.opens(scheduler.num_running, num_queued, now_ns)


def num_kv_tokens(scheduler: Scheduler) -> Callable[[int], int]:
    """Tells of each plan, by its place from the older one in flight on, over how many tokens it is made."""
    in_flight = scheduler.flights.num_kv_tokens(WORKER)
    latest, num_rows = scheduler.residents.num_kv_tokens, len(scheduler.residents.running)
    return lambda place: in_flight[place] if place < 2 else latest + (place - 1) * num_rows


def skip(scheduler: Scheduler, count: int) -> None:
    """As if `count` more steps, at most `num_alike`, had been applied and planned."""
    block_size, residents, policies = scheduler.device.block_size, scheduler.residents, scheduler.policies
    decoding = list(residents.running.values())
    for sequence in decoding:
        sequence.token_ids += repeat(TOKEN, count)
        sequence.num_computed += count
        sequence.num_tokens += count
        if sequence.num_computed > len(sequence.blocks) * block_size:
            blocks = scheduler.pool.take(blocks_for(sequence.num_computed, block_size) - len(sequence.blocks))
            assert blocks is not None, "num_alike leaves room for every block"
            sequence.blocks += blocks
    num_kv = num_kv_tokens(scheduler)
    scheduler.flights.postpone(WORKER, count, [num_kv(count), num_kv(count + 1)])
    scheduler.num_steps += count
    residents.num_kv_tokens += count * len(decoding)
    if not isinstance(policies.order, KeyedOrder):  # which does not count
        for _ in range(count):
            policies.order.served(decoding)
    scheduler.num_padding_tokens += count * policies.batching.num_padding(len(decoding))
