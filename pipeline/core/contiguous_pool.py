"""ContiguousPool: blocks as one range each time, first fit, so that memory is fragmented as it really was."""

from collections.abc import Collection, Iterable, Iterator

from pipeline.core.block_pool import FREE, OWNED, BlockPool


class ContiguousPool(BlockPool):
    """A block has one holder at most, and none is kept: ranges cannot be shared."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._gaps = [(0, num_blocks)] if num_blocks else []
        """The free ranges, [start, end), in order; no two touch."""
        self._num_free = num_blocks

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def longest_gap(self) -> int:
        """The most that can be taken at once."""
        return max((end - start for start, end in self._gaps), default=0)

    def fits(self, count: int, freed: Collection[int] = ()) -> bool:
        return any(end - start >= count for start, end in self._with(freed)) or not count

    def take(self, count: int) -> list[int] | None:
        """The first range that is long enough, from its start on."""
        for place, (start, end) in enumerate(self._gaps):
            if end - start >= count > 0:
                self._gaps[place : place + 1] = [(start + count, end)] if end - start > count else []
                self._num_free -= count
                self._mark(range(start, start + count), OWNED)
                return list(range(start, start + count))
        return None if count else []

    def share(self, blocks: list[int]) -> None:
        if blocks:
            raise AssertionError("a contiguous range is one sequence's")

    def keep(self, blocks: list[int]) -> None:
        self.share(blocks)

    def give_back(self, blocks: list[int]) -> None:
        for block in blocks:
            if self._states[block] == FREE:
                raise AssertionError(f"block {block} is freed twice")
            self._mark((block,), FREE)
        self._num_free += len(blocks)
        self._gaps = list(self._with(blocks))

    def _with(self, freed: Collection[int]) -> Iterator[tuple[int, int]]:
        """The gaps as they would be if these were free too."""
        if not freed:
            yield from self._gaps
            return
        ranges = sorted([*self._gaps, *_ranges(sorted(freed))])
        start, end = ranges[0]
        for next_start, next_end in ranges[1:]:
            if next_start > end:
                yield start, end
                start = next_start
            end = next_end
        yield start, end

    def _mark(self, blocks: Iterable[int], state: int) -> None:
        for block in blocks:
            self._states[block] = state
            self._num_holders[block] = int(state != FREE)


def _ranges(blocks: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending ids as [start, end) ranges."""
    place = 0
    while place < len(blocks):
        first = place
        while place < len(blocks) and blocks[place] - blocks[first] == place - first:
            place += 1
        yield blocks[first], blocks[place - 1] + 1
