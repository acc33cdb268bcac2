"""The pool: who holds a block, and which free ones are taken first."""

import pytest

from pipeline.core.block_pool import CACHED, FREE, OWNED, SHARED, BlockPool, blocks_for


def test_blocks_for_rounds_up() -> None:
    assert [blocks_for(n, 16) for n in (0, 1, 15, 16, 17, 32, 33)] == [0, 1, 1, 1, 2, 2, 3]


def test_a_block_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(3)
    assert pool.take(2) == [0, 1]
    pool.share([0])
    assert (pool.num_free, pool.num_owned, pool.num_saved) == (1, 2, 1)
    assert pool.states() == bytes([SHARED, OWNED, FREE])
    pool.give_back([0])
    assert (pool.num_free, pool.num_saved) == (1, 0) and pool.states() == bytes([OWNED, OWNED, FREE])
    pool.give_back([0, 1])
    assert pool.num_free == 3
    with pytest.raises(AssertionError, match="freed twice"):
        pool.give_back([0])


def test_kept_blocks_are_free_and_taken_last_the_longest_idle_first() -> None:
    forgotten: list[int] = []
    pool = BlockPool(4, forgotten.append)
    assert pool.take(3) == [0, 1, 2]
    pool.keep([0, 1, 2])
    pool.give_back([2])
    pool.give_back([0, 1])  # the last of them is the older: a chain goes from its end
    assert (pool.num_free, pool.num_cached) == (4, 3) and pool.states() == bytes([CACHED] * 3 + [FREE])
    assert pool.take(3) == [3, 2, 1] and forgotten == [2, 1]
    assert pool.num_cached == 1 and pool.num_held([0, 1]) == 1


def test_what_was_taken_for_something_else_is_kept_no_longer() -> None:
    pool = BlockPool(1)
    pool.take(1)
    pool.keep([0])
    pool.give_back([0])
    pool.take(1)
    pool.give_back([0])
    assert pool.num_cached == 0 and pool.states() == bytes([FREE])


def test_an_idle_block_is_held_again_and_a_free_one_cannot_be_shared() -> None:
    pool = BlockPool(2)
    pool.take(1)
    pool.keep([0])
    pool.give_back([0])
    pool.share([0])
    assert pool.states() == bytes([OWNED, FREE]) and pool.num_saved == 0 and pool.num_free == 1
    with pytest.raises(KeyError):
        pool.share([1])


def test_none_are_taken_where_too_few_are_free() -> None:
    pool = BlockPool(2)
    assert pool.take(3) is None and pool.num_free == 2 and pool.take(0) == []
