"""How many KV blocks there will be: arithmetic over what is free. Without torch, so that it can be planned.

What the largest step needs beside the cache is measured (gpu.memory.rehearsal) and left free; the rest is
divided.
"""

import re
from typing import NamedTuple

from pipeline.errors import ConfigError, ModelError

AUTO_FRACTION = {"cuda": 0.8, "cpu": 0.125}
"""Of what is left beside weights and the largest step: a GPU is the server's own, a computer's memory is
not."""

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


class Free(NamedTuple):
    """Memory, once the weights are loaded and before there is a cache."""

    num_bytes: int | None
    """None: this system does not say."""
    step_bytes: int = 0
    """What the largest step needs of it."""

    @property
    def left_bytes(self) -> int | None:
        return None if self.num_bytes is None else max(0, self.num_bytes - self.step_bytes)


def check_kv_memory(kv_memory: int | float | str) -> None:
    """Raises ConfigError for what is neither "auto", nor a fraction, nor a size; before weights are read."""
    if isinstance(kv_memory, str) and kv_memory != "auto":
        _bytes("kv_memory", kv_memory, 'give "auto", a fraction such as 0.5, bytes')


def count_blocks(
    kv_memory: int | float | str, free: Free, device_type: str, block_bytes: int, useful_blocks: int
) -> int:
    """Blocks that `kv_memory` comes to, at most `useful_blocks` (all slots at full length).

    Args:
        kv_memory: bytes; a size such as "8GiB", "512 MiB" or "1.5GB"; a fraction of what is left; "auto".

    Raises:
        ConfigError: it is more than there is, or this system does not say how much there is.
        ModelError: not one block fits.
    """
    if kv_memory == "auto" or isinstance(kv_memory, float):
        return _share(kv_memory, free, device_type, block_bytes, useful_blocks)
    budget = _bytes("kv_memory", kv_memory, "give bytes")
    num_blocks = min(budget // block_bytes, useful_blocks)
    if num_blocks < 1:
        raise ModelError(
            f"no memory for the KV cache: one block takes {block_bytes:,} bytes, and it may have {budget:,}; "
            "raise kv_memory or lower block_size"
        )
    check_fits(f"kv_memory = {_shown(kv_memory)}", num_blocks * block_bytes, free)
    return num_blocks


def check_fits(setting: str, num_bytes: int, free: Free) -> None:
    """Raises ConfigError if a cache of `num_bytes`, which `setting` asks for, is more than is left."""
    left = free.left_bytes
    if left is not None and num_bytes > left:
        raise ConfigError(
            f"{setting} asks for {num_bytes:,} bytes of KV cache, but {left:,} are left: {free.num_bytes:,} "
            f"are free beside the weights, and the largest step needs {free.step_bytes:,} "
            "(max_num_batched_tokens, max_num_seqs)"
        )


def count_host_blocks(host_kv_memory: int | str, block_bytes: int, free_bytes: int | None) -> int:
    """Blocks that host_kv_memory holds. Raises ConfigError if it is no size, or more than there is."""
    budget = _bytes("host_kv_memory", host_kv_memory, "give bytes, 0 for none")
    if free_bytes is not None and budget > free_bytes:
        raise ConfigError(
            f"host_kv_memory = {budget:,} bytes is more than is available, which is {free_bytes:,}"
        )
    return budget // block_bytes


def disk_kv_bytes(disk_kv_memory: int | str) -> int:
    """Raises ConfigError if it is no size."""
    return _bytes("disk_kv_memory", disk_kv_memory, "give bytes, 0 for none")


def graph_budget_bytes(cuda_graph_memory: int | str) -> int:
    """Raises ConfigError if it is no size."""
    return _bytes("cuda_graph_memory", cuda_graph_memory, "give bytes")


def _share(kv_memory: float | str, free: Free, device_type: str, block_bytes: int, useful_blocks: int) -> int:
    left = free.left_bytes
    if left is None:
        raise ConfigError(
            'this system does not say how much memory is available: set kv_memory to a size, e.g. "2GiB"'
        )
    fraction = AUTO_FRACTION[device_type] if isinstance(kv_memory, str) else kv_memory
    num_blocks = min(int(left * fraction) // block_bytes, useful_blocks)
    if num_blocks < 1:
        raise ModelError(
            f"no memory for the KV cache: one block takes {block_bytes:,} bytes, and kv_memory = "
            f"{_shown(kv_memory)} is {fraction:g} of the {left:,} that are left: {free.num_bytes:,} are free "
            f"beside the weights, and the largest step needs {free.step_bytes:,}; raise kv_memory, or lower "
            "max_num_batched_tokens, max_num_seqs or block_size"
        )
    return num_blocks


def _bytes(name: str, size: int | float | str, allowed: str) -> int:
    if not isinstance(size, str):
        return int(size)
    match = _SIZE.fullmatch(size)
    if match is None or match[2] not in _UNITS:
        units = ", ".join(unit for unit in _UNITS if unit)
        raise ConfigError(f'{name} = "{size}" is not a size: {allowed}, or a number with {units}')
    return int(float(match[1]) * _UNITS[match[2]])


def _shown(value: float | str) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
