"""The KV block map: the state of every block, drawn small enough to send."""

import msgspec

MAX_CELLS = 2048
_LEVELS = 9
_OWNED = 1


class BlockMap(msgspec.Struct, frozen=True, gc=False):
    """`used` has one digit a cell: 0 no block of the cell is used, 9 all are, between them the share.

    The last cell may stand for fewer blocks than the others.
    """

    num_blocks: int
    num_used: int
    blocks_per_cell: int
    used: str


def block_map(states: bytes, max_cells: int = MAX_CELLS) -> BlockMap:
    """`states` has one byte a block, in the order of their ids: 0 free, 1 owned (core.block_pool)."""
    per_cell = max(1, -(-len(states) // max_cells))
    cells = (states[start : start + per_cell] for start in range(0, len(states), per_cell))
    used = "".join(str(_level(cell.count(_OWNED), len(cell))) for cell in cells)
    return BlockMap(len(states), states.count(_OWNED), per_cell, used)


def _level(count: int, of: int) -> int:
    """0 and 9 are kept for none and all: one used block of many shows."""
    if count == of:
        return _LEVELS
    return min(_LEVELS - 1, -(-count * _LEVELS // of))
