"""The scheduler over contiguous ranges, and the pool that they come from."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, run_state_machine_as_test

from pipeline.core.block_pool import blocks_for
from pipeline.core.contiguous_pool import ContiguousPool
from tests.property.asked import BLOCK
from tests.property.test_scheduler import SchedulerMachine, split


class ContiguousMachine(SchedulerMachine):
    """The machine of test_scheduler, with each sequence's blocks as one range from its admission on."""

    allocation = "contiguous"

    @invariant()
    def everybody_holds_one_range_for_all_that_may_come(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for sequence in self.scheduler.residents.running.values():
            start = sequence.blocks[0]
            assert sequence.blocks == list(range(start, start + blocks_for(sequence.max_kv_tokens, BLOCK)))

    @invariant()
    def nobody_is_preempted_to_let_another_grow(self) -> None:
        if hasattr(self, "scheduler"):
            assert self.scheduler.num_preemptions == self.scheduler.num_outranked

    @invariant()
    def gaps_are_what_nobody_holds(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        pool = self.scheduler.pool
        assert isinstance(pool, ContiguousPool)
        assert all(end < start for (_, end), (start, _) in pairwise(pool._gaps)), "gaps that touch are one"
        free = [block for start, end in pool._gaps for block in range(start, end)]
        assert len(free) == pool.num_free
        assert [pool.num_holders(block) for block in range(pool.num_blocks)] == [
            int(block not in set(free)) for block in range(pool.num_blocks)
        ]


class Fcfs(ContiguousMachine):
    policy = "fcfs"


class Priority(ContiguousMachine):
    policy = "priority"


class Fair(ContiguousMachine):
    policy = "fair"


MACHINES = [Fcfs, Priority, split(Fair)]


@pytest.mark.parametrize("machine", MACHINES)
def test_contiguous(machine: type[ContiguousMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("machine", MACHINES)
def test_contiguous_at_length(machine: type[ContiguousMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=2000, stateful_step_count=100, deadline=None)
    )


@given(
    num_blocks=st.integers(0, 30),
    moves=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=40),
)
def test_first_fit(num_blocks: int, moves: list[tuple[int, int]]) -> None:
    """Against a pool that looks through all its blocks every time."""
    pool, held = ContiguousPool(num_blocks), list[list[int]]()
    for count, leaver in moves:
        taken = {block for blocks in held for block in blocks}
        free = [block for block in range(num_blocks) if block not in taken]
        starts = [s for s in range(num_blocks - count + 1) if taken.isdisjoint(range(s, s + count))]
        gone = [block for blocks in held[:leaver] for block in blocks]
        would_fit = any(
            (taken - set(gone)).isdisjoint(range(s, s + count)) for s in range(num_blocks - count + 1)
        )
        assert pool.num_free == len(free) and pool.fits(count) == bool(starts or not count)
        assert pool.fits(count, gone) == (would_fit or not count)
        blocks = pool.take(count)
        assert blocks == (
            list(range(starts[0], starts[0] + count)) if starts and count else [] if not count else None
        )
        if blocks:
            held.append(blocks)
        elif leaver < len(held):
            pool.give_back(held.pop(leaver))
    for blocks in held:
        pool.give_back(blocks)
    assert pool.longest_gap == pool.num_free == num_blocks


def test_a_block_is_freed_once() -> None:
    pool = ContiguousPool(3)
    pool.give_back(pool.take(2) or [])
    with pytest.raises(AssertionError, match="block 1 is freed twice"):
        pool.give_back([1])
