"""The GPU's streams, events, pinned memory and graphs, by torch.cuda. Implements gpu.device."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pipeline.gpu.device import Clock, Completion, Device, Graph, StepMemory
from pipeline.gpu.device_clock import DeviceClock

NUM_HOSTS = 2
"""Steps in flight: by the scheduler's credits a third one is planned when the first is done."""


class CudaDevice:
    """A stream for steps, and one that copies results while the next step runs. Implements Device, and
    both that it may have.

    One event a step is waited for; two more are timestamps.
    """

    def __init__(self, torch_device: torch.device, clock: Clock = time.perf_counter_ns) -> None:
        self.torch_device = torch_device
        self._clock = clock
        self._stream = _stream(torch_device)
        self._results_stream = _stream(torch_device)
        self._times = self._calibrated()
        self._begin = self._stamp()
        self._launched_ns = 0

    @property
    def uploader(self) -> "CudaDevice":
        return self

    @property
    def capturer(self) -> "CudaDevice":
        return self

    def active(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def step_memory(self, num_bytes: int) -> StepMemory:
        hosts = [torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(NUM_HOSTS)]
        return StepMemory(hosts, torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_device))

    def upload(self, host: Tensor, device: Tensor, num_bytes: int) -> None:
        device[:num_bytes].copy_(host[:num_bytes], non_blocking=True)

    def start(self) -> None:
        self._launched_ns = self._clock()
        self._begin = self._stamp()

    def finish(self, results: Sequence[Tensor]) -> Completion:
        end = self._stamp()
        self._results_stream.wait_event(end)
        with torch.cuda.stream(self._results_stream):
            copies = [self._to_host(result) for result in results]
            done = _event(blocking=True)  # a thread that waits leaves its core to others
            done.record(self._results_stream)
        return CudaStep(self._times, (self._begin, end), self._launched_ns, done, copies)

    def wait_sync(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def fork(self) -> Device:
        return CudaDevice(self.torch_device, self._clock)

    def capture(self, work: Callable[[], Tensor], beside: Graph | None) -> "CudaGraph":
        work()  # compiles and loads kernels, which cannot be captured
        graph = torch.cuda.CUDAGraph()
        pool = beside.pool() if isinstance(beside, CudaGraph) else None
        # thread_local: the other worker's thread may go on meanwhile
        with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
            output = work()
        return CudaGraph(graph, output)

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.torch_device)[0]

    def _stamp(self) -> torch.cuda.Event:
        event = _event(enable_timing=True)
        event.record(self._stream)
        return event

    def _calibrated(self) -> DeviceClock:
        event = self._stamp()
        event.synchronize()
        return DeviceClock(self._clock, event, self._clock())

    def _to_host(self, result: Tensor) -> Tensor:
        # torch keeps pinned memory for the next of its size: no call of the driver after the first steps
        host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        host.copy_(result, non_blocking=True)
        result.record_stream(self._results_stream)  # not to be given away before the copy is made
        return host


class CudaStep:
    """Implements Completion. A fault of the device is raised by is_done and results_sync."""

    def __init__(
        self,
        times: DeviceClock,
        stamps: tuple[torch.cuda.Event, torch.cuda.Event],
        launched_ns: int,
        done: torch.cuda.Event,
        results: list[Tensor],
    ) -> None:
        self._times, self._stamps, self._launched_ns = times, stamps, launched_ns
        self._done, self._results = done, results

    def is_done(self) -> bool:
        return bool(self._done.query())  # type: ignore[no-untyped-call]

    def results_sync(self) -> list[Tensor]:
        self._done.synchronize()
        return self._results

    @property
    def begin_ns(self) -> int:
        return self._span[0]

    @property
    def end_ns(self) -> int:
        return self._span[1]

    @cached_property
    def _span(self) -> tuple[int, int]:
        return self._times.span(*self._stamps, self._launched_ns)


class CudaGraph:
    """Implements Graph."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self._graph, self.output = graph, output

    def replay(self) -> None:
        self._graph.replay()

    def pool(self) -> Any:
        """Of its memory."""
        return self._graph.pool()


def _stream(torch_device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(torch_device)  # type: ignore[no-untyped-call]


def _event(**options: bool) -> torch.cuda.Event:
    return torch.cuda.Event(**options)  # type: ignore[no-untyped-call]
