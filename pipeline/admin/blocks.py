"""The KV block map: the state of every block, drawn small enough to send."""

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.telemetry.occupancy import BLOCK_OWNED

Cells = npt.NDArray[np.int64]

MAX_CELLS = 2048
_LEVELS = 9


class BlockMap(msgspec.Struct, frozen=True, gc=False):
    """`used` has one digit a cell: 0 no block of the cell is used, 9 all are, between them the share.

    The last cell may stand for fewer blocks than the others.
    """

    num_blocks: int
    num_used: int
    blocks_per_cell: int
    used: str


def block_map(states: bytes, max_cells: int = MAX_CELLS) -> BlockMap:
    """`states` has one byte a block, in the order of their ids (telemetry.Occupancy), and is not empty."""
    per_cell = -(-len(states) // max_cells)
    starts = np.arange(0, len(states), per_cell)
    owned = np.frombuffer(states, dtype=np.uint8) == BLOCK_OWNED
    counts = np.add.reduceat(owned, starts, dtype=np.int64)
    sizes = np.diff(starts, append=len(states))
    digits = (_levels(counts, sizes) + ord("0")).astype(np.uint8).tobytes().decode("ascii")
    return BlockMap(len(states), int(counts.sum()), per_cell, digits)


def _levels(counts: Cells, sizes: Cells) -> Cells:
    """0 and 9 are kept for none and all: one used block of many shows. Both arguments: one value a cell."""
    shares = np.minimum(_LEVELS - 1, -(-counts * _LEVELS // sizes))
    return np.where(counts == sizes, _LEVELS, shares)
