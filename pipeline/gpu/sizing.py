"""How many KV blocks the device holds."""

import re
from pathlib import Path

import torch

from pipeline.errors import ConfigError, ModelError

AUTO_FRACTION = 0.5
"""Of the memory available once the weights are loaded; the rest is for activations and other programs."""

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """ "8GiB", "512 MiB", "1.5GB" or plain bytes. Raises ConfigError."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in _UNITS:
        units = ", ".join(unit for unit in _UNITS if unit)
        raise ConfigError(
            f'kv_memory = "{text}" is not a size: write "auto", a number of bytes, or one with {units}'
        )
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


def count_blocks(kv_memory: int | str, block_bytes: int, useful_blocks: int, available_bytes: int) -> int:
    """Blocks in the budget, at most `useful_blocks` (all slots at full length). Raises ModelError below 1."""
    if kv_memory == "auto":
        budget = int(available_bytes * AUTO_FRACTION)
    else:
        budget = kv_memory if isinstance(kv_memory, int) else parse_bytes(kv_memory)
    num_blocks = min(budget // block_bytes, useful_blocks)
    if num_blocks < 1:
        raise ModelError(
            f"no memory for the KV cache: one block takes {block_bytes:,} bytes, kv_memory = {kv_memory} "
            f"gives {budget:,} of {available_bytes:,} available; raise kv_memory or lower block_size"
        )
    return num_blocks
