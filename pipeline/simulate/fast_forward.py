"""Steps alike: the only place where the simulator reaches into the scheduler instead of calling it.

While nobody waits and every running sequence decodes, each plan is the one before with every context a token
longer. `num_alike` says for how many more plans that holds, `skip` puts the scheduler where so many calls of
`apply` and `plan` would. tests/property/test_fast_forward.py holds both against those calls.
"""

from pipeline.core.block_pool import blocks_for
from pipeline.core.scheduling import Scheduler
from pipeline.messages import StepPlan


def num_alike(scheduler: Scheduler, first: StepPlan, second: StepPlan) -> int:
    """How many plans after the two in flight are the same rows, one token each; 0 if that cannot be said."""
    running = scheduler.running
    if scheduler.waiting or not len(first.token_ids) == len(second.token_ids) == len(running):
        return 0
    if first.request_ids != second.request_ids or len(second.slots) != len(running):
        return 0
    if first.num_tokens != second.num_tokens or any(each.is_paused for each in running):
        return 0
    left = min(each.max_len - len(each.token_ids) - each.num_pending for each in running)
    pool, block_size = scheduler.pool, scheduler.device.block_size
    return min(left, (pool.num_free // len(running) - 1) * block_size)


def skip(scheduler: Scheduler, count: int) -> None:
    """As if `count` more steps, at most `num_alike`, had been applied and planned."""
    block_size = scheduler.device.block_size
    for sequence in scheduler.running:
        sequence.token_ids += [0] * count
        sequence.num_computed += count
        missing = blocks_for(sequence.num_computed, block_size) - len(sequence.blocks)
        if missing > 0:
            blocks = scheduler.pool.take(missing)
            assert blocks is not None, "num_alike leaves room for every block"
            sequence.blocks += blocks
    scheduler.num_kv_tokens += count * len(scheduler.running)
