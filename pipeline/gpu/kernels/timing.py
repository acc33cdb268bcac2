"""How long work takes on the GPU: by CUDA events, with a cold L2 cache, the median of several runs."""

import statistics
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import torch

from pipeline.errors import ConfigError

Work: TypeAlias = Callable[[], object]

FLUSH_BYTES = 1024 * 1024 * 1024
"""Written over before each run: more than any L2 cache has, and slow enough that the host has queued the work
when the GPU comes to it, so that its launches do not count."""
WARM_UP = 3
MIN_RUNS, MAX_RUNS = 5, 50


class Timer(Protocol):
    """Times one run."""

    def __call__(self, work: Work) -> float:
        """ms."""
        ...


class EventTimer:
    """Between two events on the stream, after the L2 cache has been written over. Implements Timer."""

    def __init__(self, device: torch.device) -> None:
        self._cache = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)

    def __call__(self, work: Work) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._cache.zero_()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))


class Gpu(NamedTuple):
    """One that work can be timed on."""

    name: str
    """As CUDA has it."""
    device: torch.device
    timer: Timer


def find_gpu() -> Gpu:
    """That of this machine. Raises ConfigError."""
    if not torch.cuda.is_available():
        raise ConfigError("times are measured on a GPU, and torch sees none on this machine")
    device = torch.device("cuda")
    return Gpu(torch.cuda.get_device_name(device), device, EventTimer(device))


def median_ms(work: Work, timer: Timer, budget_ms: float = 100.0) -> float:
    """Of as many runs as fit into the budget, MIN_RUNS to MAX_RUNS, after WARM_UP that do not count."""
    warm = min(timer(work) for _ in range(WARM_UP))
    num_runs = MAX_RUNS if warm * MAX_RUNS <= budget_ms else max(MIN_RUNS, int(budget_ms / warm))
    return statistics.median(timer(work) for _ in range(num_runs))
