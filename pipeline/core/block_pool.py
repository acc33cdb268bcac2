"""BlockPool: which KV blocks are free. Ids only; the tensors are gpu's."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable

from pipeline.core.pins import IdleOrder

FREE, OWNED, CACHED, SHARED = range(4)
"""States of a block. CACHED is free as well, but still holds what somebody may want to read."""


class BlockPool:
    """Hands out ids 0 .. num_blocks-1. A block is free, or held by one or more takers.

    Of the free ones those that are to be kept (`keep`) are taken last, whichever was held longest ago first.

    Args:
        forget: is told of a kept block that is taken, before anybody can write to it.
        idle: the order in which kept blocks are taken; None: whichever was held longest ago first.
    """

    def __init__(
        self,
        num_blocks: int,
        forget: Callable[[int], None] | None = None,
        idle: IdleOrder | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.num_saved = 0
        """How many more blocks would be held if none had several holders."""
        self._forget = forget
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: IdleOrder = OrderedDict() if idle is None else idle
        """Kept blocks without a holder, in the order in which they lost the last one."""
        self._num_holders = [0] * num_blocks
        self._is_kept = bytearray(num_blocks)
        self._states = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """What can be taken: kept blocks that nobody holds are free."""
        return len(self._free) + len(self._idle)

    @property
    def num_owned(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Those of the free that are kept."""
        return len(self._idle)

    @property
    def num_blank(self) -> int:
        """Those of the free that are not."""
        return len(self._free)

    def states(self) -> bytes:
        """One byte a block, in the order of their ids: FREE, OWNED (by one), CACHED, SHARED (by several)."""
        return bytes(self._states)

    def num_holders(self, block: int) -> int:
        return self._num_holders[block]

    def num_held(self, blocks: Iterable[int]) -> int:
        """How many of these have a holder."""
        return sum(map(bool, map(self._num_holders.__getitem__, blocks)))

    def fits(self, count: int, freed: Collection[int] = ()) -> bool:
        """Whether `count` could be taken, if these were free too; they are held now."""
        return count <= self.num_free + len(freed)

    def take(self, count: int) -> list[int] | None:
        """`count` blocks, or None if there are not so many; the most recently freed come first."""
        if count > self.num_free:
            return None
        first = max(0, len(self._free) - count)
        taken = self._free[first:]
        taken.reverse()
        del self._free[first:]
        while len(taken) < count:
            taken.append(self._evict())
        for block in taken:
            self._num_holders[block] = 1
            self._states[block] = OWNED
        return taken

    def share(self, blocks: list[int]) -> None:
        """One more holder for each; they are held by others, or kept."""
        for block in blocks:
            if self._num_holders[block]:
                self.num_saved += 1
                self._states[block] = SHARED
            else:
                del self._idle[block]  # KeyError: it is just free, a fault of ours
                self._states[block] = OWNED
            self._num_holders[block] += 1

    def keep(self, blocks: list[int]) -> None:
        """These are held; once they are not, keep what is in them for as long as possible."""
        for block in blocks:
            self._is_kept[block] = 1

    def discard(self, block: int) -> None:
        """What was kept in it is of no use: once nobody holds it, it is just free. `forget` is not told."""
        self._is_kept[block] = 0
        if not self._num_holders[block]:
            del self._idle[block]
            self._free.append(block)
            self._states[block] = FREE

    def take_first(self, blocks: list[int]) -> None:
        """Those of these that are cached are taken before all other cached ones, the last one first."""
        for block in blocks:
            if block in self._idle:
                self._idle.move_to_end(block, last=False)

    def give_back(self, blocks: list[int]) -> None:
        """One holder less for each. Freeing a free block is a fault of ours and raises."""
        for block in reversed(blocks):
            num_left = self._num_holders[block] - 1
            if num_left < 0:
                raise AssertionError(f"block {block} is freed twice")
            self._num_holders[block] = num_left
            if num_left:
                self.num_saved -= 1
                self._states[block] = SHARED if num_left > 1 else OWNED
            elif self._is_kept[block]:
                self._idle[block] = None
                self._states[block] = CACHED
            else:
                self._free.append(block)
                self._states[block] = FREE

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        self._is_kept[block] = 0
        if self._forget is not None:
            self._forget(block)
        return block


def blocks_for(num_tokens: int, block_size: int) -> int:
    """ceil(num_tokens / block_size): 0 for 0, 1 for a full block."""
    return -(-num_tokens // block_size)
