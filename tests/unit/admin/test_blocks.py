"""The KV block map."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.admin.blocks import MAX_CELLS, block_map


def test_a_cell_a_block_while_they_fit() -> None:
    found = block_map(bytes([0, 1, 1, 0]))
    assert (found.num_blocks, found.num_used, found.blocks_per_cell, found.used) == (4, 2, 1, "0990")


def test_shared_blocks_are_used_and_cached_ones_are_free() -> None:
    found = block_map(bytes([0, 1, 2, 3, 3, 2]))
    assert (found.num_used, found.used) == (3, "090990")
    assert (found.num_shared, found.shared) == (2, "000990")
    assert (found.num_cached, found.cached) == (2, "009009")


def test_many_blocks_share_cells() -> None:
    found = block_map(bytes([1] * 4 + [0] * 4 + [0, 0, 0, 1] + [1]), max_cells=4)
    assert found.blocks_per_cell == 4 and found.used == "9039"  # the last cell has but one block


@given(st.lists(st.integers(0, 1), min_size=1, max_size=300), st.integers(1, 40))
def test_none_and_all_are_told_apart_from_some(states: list[int], max_cells: int) -> None:
    found = block_map(bytes(states), max_cells)
    assert len(found.used) <= max_cells and found.num_used == sum(states)
    for index, level in enumerate(found.used):
        cell = states[index * found.blocks_per_cell : (index + 1) * found.blocks_per_cell]
        assert (level == "0") == (sum(cell) == 0) and (level == "9") == (sum(cell) == len(cell))


@pytest.mark.parametrize("num_blocks", [MAX_CELLS, MAX_CELLS + 1, 65_536, 1_000_003])
def test_a_large_cache_stays_small_on_the_wire(num_blocks: int) -> None:
    assert len(block_map(bytes(num_blocks)).used) <= MAX_CELLS
