"""Allocation: how much of the pool a sequence is given, and when."""

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from pipeline.core.block_pool import BlockPool, blocks_for
from pipeline.core.contiguous_pool import ContiguousPool
from pipeline.core.pins import Pins
from pipeline.core.sequence import Sequence

Forget: TypeAlias = Callable[[int], None]
AllocationName: TypeAlias = Literal["paged", "contiguous"]


class Allocation(Protocol):
    """What the residents ask."""

    is_by_block: bool
    """A sequence may take and give back single blocks."""

    def new_pool(self, num_blocks: int, forget: Forget, pins: Pins | None) -> BlockPool: ...

    def num_first(self, sequence: Sequence, block_size: int) -> int:
        """Blocks that it enters with: for all the tokens it has, at least."""
        ...

    def num_spare(self, sequence: Sequence, num_running: int) -> int:
        """Blocks that must be free beside these before it enters."""
        ...


class Paged:
    """Blocks for the tokens there are; one more when it grows past its last."""

    is_by_block = True

    def new_pool(self, num_blocks: int, forget: Forget, pins: Pins | None) -> BlockPool:
        return BlockPool(num_blocks, forget, pins)

    def num_first(self, sequence: Sequence, block_size: int) -> int:
        return blocks_for(len(sequence.token_ids), block_size)

    def num_spare(self, sequence: Sequence, num_running: int) -> int:
        """For one that was preempted a block for each that runs to grow by, so that its return is not the
        next preemption's cause; alone, it always fits.
        """
        return num_running if sequence.epoch else 0


class Contiguous:
    """One range for all it can come to hold, prompt and max_tokens, reserved when it enters: what engines did
    before paging. The baseline, for comparisons. Nobody grows, so nobody is preempted for that.
    """

    is_by_block = False

    def new_pool(self, num_blocks: int, forget: Forget, pins: Pins | None) -> BlockPool:
        return ContiguousPool(num_blocks)

    def num_first(self, sequence: Sequence, block_size: int) -> int:
        return blocks_for(sequence.max_kv_tokens, block_size)

    def num_spare(self, sequence: Sequence, num_running: int) -> int:
        return 0


ALLOCATIONS: dict[AllocationName, Allocation] = {"paged": Paged(), "contiguous": Contiguous()}
