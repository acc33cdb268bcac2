"""What a device has free and in use, and the most that some work takes of it."""

import re
from collections.abc import Callable
from pathlib import Path

import torch

from pipeline.gpu.memory.free import free_host_bytes

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def free_bytes(device: torch.device) -> int | None:
    """Now; on the GPU what torch keeps for itself is given back first. None where the system does not say."""
    if device.type != "cuda":
        return free_host_bytes()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def in_use_bytes(device: torch.device) -> int:
    """CUDA: of torch's allocator. CPU: this process's resident set (proc(5)); 0 on systems without /proc."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.memory_allocated(device)
    return _status_bytes("VmRSS")


def most_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """The most that was in use at once while `work` ran.

    On the CPU that is the high-water mark of the resident set (proc(5): VmHWM), lowered to the present first.
    Where that is not allowed the mark of an earlier peak stays: the answer is too high then, never too low.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    _lower_mark()
    work()
    return _status_bytes("VmHWM")


def _lower_mark() -> None:
    try:
        _CLEAR.write_text("5")
    except OSError:
        return  # see most_bytes


def _status_bytes(field: str) -> int:
    try:
        match = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0
