"""BlockPool: which KV blocks are free. Ids only; the tensors are gpu's."""


class BlockPool:
    """Hands out ids 0 .. num_blocks-1. Every block is either free or owned by exactly one taker."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_owned = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_owned(self) -> int:
        return self.num_blocks - len(self._free)

    def states(self) -> bytes:
        """One byte a block, in the order of their ids: 0 free, 1 owned."""
        return bytes(self._is_owned)

    def take(self, count: int) -> list[int] | None:
        """`count` blocks, or None if there are not so many; the most recently freed come first."""
        if count > len(self._free):
            return None
        first = len(self._free) - count
        taken = self._free[first:]
        taken.reverse()
        del self._free[first:]
        for block in taken:
            self._is_owned[block] = 1
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Free blocks that were taken. Freeing a free block is a fault of ours and raises."""
        for block in blocks:
            if not self._is_owned[block]:
                raise AssertionError(f"block {block} is freed twice")
            self._is_owned[block] = 0
        self._free.extend(reversed(blocks))


def blocks_for(num_tokens: int, block_size: int) -> int:
    """ceil(num_tokens / block_size): 0 for 0, 1 for a full block."""
    return -(-num_tokens // block_size)
