"""What a device has free, and the most that a stretch of work takes of it."""

import re
from pathlib import Path
from types import TracebackType

import torch

from pipeline.gpu.free_memory import free_host_bytes

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def free_bytes(device: torch.device) -> int | None:
    """Now; on the GPU what torch keeps for itself is given back first. None where the system does not say."""
    if device.type != "cuda":
        return free_host_bytes()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


class Peak:
    """Around work: `num_bytes` is the most memory that it had at once beyond what was in use at its start.

    CUDA: of torch's allocator. CPU: of this whole process, from the high-water mark of its resident set
    (proc(5): VmHWM), which is lowered to the present first; where that is not allowed the mark of an earlier
    peak stays, and the answer is too high, never too low. 0 on systems without /proc.
    """

    def __init__(self, device: torch.device) -> None:
        self.num_bytes = 0
        self._device = device
        self._before = 0

    def __enter__(self) -> "Peak":
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            _lower_mark()
            self._before = _status_bytes("VmRSS")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            most = torch.cuda.max_memory_allocated(self._device)
        else:
            most = _status_bytes("VmHWM")
        self.num_bytes = max(0, most - self._before)


def _lower_mark() -> None:
    try:
        _CLEAR.write_text("5")
    except OSError:
        return  # see Peak: the answer is too high then


def _status_bytes(field: str) -> int:
    try:
        match = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0
