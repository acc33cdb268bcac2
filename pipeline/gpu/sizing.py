"""How many KV blocks the device holds."""

import re
from pathlib import Path

import torch

from pipeline.errors import ConfigError, ModelError

AUTO_FRACTION = {"cuda": 0.8, "cpu": 0.125}
"""Of the memory free once the weights are loaded: a GPU is the server's own, a computer's memory is not."""

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def memory_budget(kv_memory: int | str) -> int | None:
    """kv_memory, a number or "8GiB", "512 MiB", "1.5GB", in bytes; None is auto. Raises ConfigError."""
    return None if kv_memory == "auto" else _bytes("kv_memory", kv_memory, 'give "auto", bytes')


def count_host_blocks(host_kv_memory: int | str, block_bytes: int) -> int:
    """Blocks that host_kv_memory holds. Raises ConfigError if it is no size, or more than there is."""
    budget = _bytes("host_kv_memory", host_kv_memory, "give bytes, 0 for none")
    if budget and budget > (free := available_bytes(torch.device("cpu"))):
        raise ConfigError(f"host_kv_memory = {budget:,} bytes is more than is available, which is {free:,}")
    return budget // block_bytes


def _bytes(name: str, size: int | str, allowed: str) -> int:
    if isinstance(size, int):
        return size
    match = _SIZE.fullmatch(size)
    if match is None or match[2] not in _UNITS:
        units = ", ".join(unit for unit in _UNITS if unit)
        raise ConfigError(f'{name} = "{size}" is not a size: {allowed}, or a number with {units}')
    return int(float(match[1]) * _UNITS[match[2]])


def available_bytes(device: torch.device) -> int:
    """Bytes free now: on the GPU, or on the CPU MemAvailable (proc(5)) within the cgroup's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo").read_text()
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if match is None:
        raise ConfigError('this system does not say how much memory is available: set kv_memory, e.g. "2GiB"')
    return min(int(match[1]) * 1024, _cgroup_bytes())


def _cgroup_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    try:
        limit = (root / "memory.max").read_text().strip()
        used = (root / "memory.current").read_text().strip()
    except OSError:
        return 2**63
    return 2**63 if limit == "max" else max(0, int(limit) - int(used))


def auto_budget(device: torch.device) -> int:
    """Bytes for the KV cache where the configuration names none; ask once the weights are loaded."""
    return int(available_bytes(device) * AUTO_FRACTION[device.type])


def count_blocks(budget: int, block_bytes: int, useful_blocks: int) -> int:
    """Blocks that `budget` bytes hold, at most `useful_blocks` (all slots at full length).

    Raises ModelError where not one fits.
    """
    num_blocks = min(budget // block_bytes, useful_blocks)
    if num_blocks < 1:
        raise ModelError(
            f"no memory for the KV cache: one block takes {block_bytes:,} bytes, and it may have {budget:,}; "
            "raise kv_memory or lower block_size"
        )
    return num_blocks
