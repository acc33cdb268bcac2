"""How many blocks fit, and what is said when none does."""

import os
from pathlib import Path

import pytest
import torch

from pipeline.errors import ConfigError, ModelError
from pipeline.gpu.sizing import (
    AUTO_FRACTION,
    _cgroup_bytes,
    auto_budget,
    available_bytes,
    count_blocks,
    memory_budget,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("123", 123),
        ("8GiB", 8 * 2**30),
        (" 512 MiB ", 512 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("0KiB", 0),
        (5000, 5000),
        ("auto", None),
    ],
)
def test_sizes(text: str | int, expected: int | None) -> None:
    assert memory_budget(text) == expected


@pytest.mark.parametrize("text", ["", "lots", "-1GiB", "8 GiBs", "1e9", "nan", "GiB"])
def test_what_is_no_size_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(ConfigError, match=r'kv_memory = ".*" is not a size.*GiB'):
        memory_budget(text)


def test_auto_takes_its_fraction_but_no_more_than_is_of_use() -> None:
    cpu = torch.device("cpu")
    assert auto_budget(cpu) == pytest.approx(available_bytes(cpu) * AUTO_FRACTION["cpu"], rel=0.2)
    assert count_blocks(200_000, 1000, 7) == 7


def test_a_given_size_is_taken_as_it_is() -> None:
    assert count_blocks(5000, 1000, 10**9) == 5


def test_no_room_for_one_block_says_the_numbers() -> None:
    with pytest.raises(ModelError, match=r"one block takes 2,048 bytes.* 1,024;"):
        count_blocks(1024, 2048, 10)


def test_available_memory_is_that_of_this_machine() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 2**20 < available_bytes(torch.device("cpu")) <= total


def test_a_cgroup_limits_memory(tmp_path: Path) -> None:
    assert _cgroup_bytes(tmp_path) == 2**63
    (tmp_path / "memory.current").write_text("300\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert _cgroup_bytes(tmp_path) == 2**63
    (tmp_path / "memory.max").write_text("1000\n")
    assert _cgroup_bytes(tmp_path) == 700
