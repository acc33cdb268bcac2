"""The KV block map: the state of every block, drawn small enough to send."""

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.telemetry.occupancy import BLOCK_CACHED, BLOCK_OWNED, BLOCK_SHARED

Cells = npt.NDArray[np.int64]

MAX_CELLS = 2048
_LEVELS = 9


class BlockMap(msgspec.Struct, frozen=True, gc=False):
    """`used`, `shared` and `cached` have one digit a cell: 0 none of its blocks is, 9 all are, between them
    the share. Shared ones are used as well, by several sequences; cached ones are free, but hold a prefix.

    The last cell may stand for fewer blocks than the others.
    """

    num_blocks: int
    num_used: int
    blocks_per_cell: int
    used: str
    num_shared: int
    shared: str
    num_cached: int
    cached: str


def block_map(states: bytes, max_cells: int = MAX_CELLS) -> BlockMap:
    """`states` has one byte a block, in the order of their ids (telemetry.Occupancy), and is not empty."""
    per_cell = -(-len(states) // max_cells)
    starts = np.arange(0, len(states), per_cell)
    sizes = np.diff(starts, append=len(states))
    state = np.frombuffer(states, dtype=np.uint8)

    def drawn(blocks: npt.NDArray[np.bool_]) -> tuple[int, str]:
        counts = np.add.reduceat(blocks, starts, dtype=np.int64)
        digits = (_levels(counts, sizes) + ord("0")).astype(np.uint8).tobytes().decode("ascii")
        return int(counts.sum()), digits

    num_used, used = drawn((state == BLOCK_OWNED) | (state == BLOCK_SHARED))
    num_shared, shared = drawn(state == BLOCK_SHARED)
    num_cached, cached = drawn(state == BLOCK_CACHED)
    return BlockMap(len(states), num_used, per_cell, used, num_shared, shared, num_cached, cached)


def _levels(counts: Cells, sizes: Cells) -> Cells:
    """0 and 9 are kept for none and all: one used block of many shows. Both arguments: one value a cell."""
    shares = np.minimum(_LEVELS - 1, -(-counts * _LEVELS // sizes))
    return np.where(counts == sizes, _LEVELS, shares)
