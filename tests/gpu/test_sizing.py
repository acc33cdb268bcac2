"""How many blocks fit, and what is said when none does."""

import os
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, ModelError
from pipeline.gpu.memory.free import cgroup_bytes, free_host_bytes
from pipeline.gpu.memory.sizing import (
    AUTO_FRACTION,
    Free,
    check_fits,
    check_kv_memory,
    count_blocks,
    count_host_blocks,
)

PLENTY = Free(10**12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("123", 123),
        ("8GiB", 8 * 2**30),
        (" 512 MiB ", 512 * 2**20),
        ("1.5GB", 1_500_000_000),
        (5000, 5000),
    ],
)
def test_sizes(text: str | int, expected: int) -> None:
    check_kv_memory(text)
    assert count_blocks(text, PLENTY, "cpu", 1, 10**12) == expected


@pytest.mark.parametrize("text", ["", "lots", "-1GiB", "8 GiBs", "1e9", "nan", "GiB"])
def test_what_is_no_size_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(ConfigError, match=r'kv_memory = ".*" is not a size.*GiB'):
        check_kv_memory(text)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_auto_and_fractions_are_of_what_the_largest_step_leaves(device: str) -> None:
    free = Free(1_000_000, 200_000)
    assert count_blocks("auto", free, device, 1000, 10**9) == int(800 * AUTO_FRACTION[device])
    assert count_blocks(0.25, free, device, 1000, 10**9) == 200
    assert count_blocks(0.25, free, device, 1000, 7) == 7, "no more than all slots can use"


def test_a_size_is_taken_as_it_is_as_far_as_there_is_room() -> None:
    assert count_blocks(5000, Free(9000, 4000), "cpu", 1000, 10**9) == 5
    with pytest.raises(ConfigError) as refused:
        count_blocks("6KB", Free(9000, 4000), "cpu", 1000, 10**9)
    for part in ('kv_memory = "6KB"', "6,000 bytes", "5,000 are left", "9,000 are free", "needs 4,000"):
        assert part in str(refused.value)
    assert count_blocks("6KB", Free(9000, 4000), "cpu", 1000, 5) == 5, "what is of no use needs no room"
    with pytest.raises(ConfigError, match=r"num_blocks = 10 asks for 10,000 bytes .* 5,000 are left"):
        check_fits("num_blocks = 10", 10_000, Free(9000, 4000))


def test_no_room_for_one_block_says_the_numbers() -> None:
    with pytest.raises(ModelError, match=r"one block takes 2,048 bytes.* 1,024;"):
        count_blocks(1024, PLENTY, "cpu", 2048, 10)
    with pytest.raises(ModelError, match=r"2,048 bytes, and kv_memory = 0.5 is 0.5 of the 100 that are left"):
        count_blocks(0.5, Free(1000, 900), "cpu", 2048, 10)
    with pytest.raises(ModelError, match=r'kv_memory = "auto" is 0.125 of the 0 that are left'):
        count_blocks("auto", Free(1000, 9000), "cpu", 2048, 10)


def test_a_system_that_does_not_say_takes_sizes_alone() -> None:
    assert count_blocks(5000, Free(None), "cpu", 1000, 10) == 5
    with pytest.raises(ConfigError, match="does not say how much memory is available"):
        count_blocks("auto", Free(None), "cpu", 1000, 10)


def test_host_blocks() -> None:
    assert count_host_blocks("10KB", 1000, 10**9) == 10 and count_host_blocks(0, 1000, 5) == 0
    with pytest.raises(ConfigError, match=r"host_kv_memory = 10,000 bytes is more than .* 9,000"):
        count_host_blocks("10KB", 1000, 9000)


def test_available_memory_is_that_of_this_machine() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 2**20 < (free_host_bytes() or 0) <= total


def test_a_cgroup_limits_memory(tmp_path: Path) -> None:
    assert cgroup_bytes(tmp_path) == 2**63
    (tmp_path / "memory.current").write_text("300\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert cgroup_bytes(tmp_path) == 2**63
    (tmp_path / "memory.max").write_text("1000\n")
    assert cgroup_bytes(tmp_path) == 700
