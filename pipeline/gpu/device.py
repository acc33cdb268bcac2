"""The boundary between the runner and a device: memory for a step's inputs, a queue, and its end.

All that the runner asks of a GPU's streams and events goes through here, so that it is the same code on the
CPU, where nothing is queued, and in tests on a device that counts and is late on purpose.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from pipeline.errors import ConfigError

Clock: TypeAlias = Callable[[], int]


class StepMemory(NamedTuple):
    """For the inputs of steps: bytes, uint8."""

    hosts: list[Tensor]
    """Taken in turns, since the device may still be reading one when the next step is laid out."""
    device: Tensor
    """One: copies into it are queued behind the steps that read it."""


class Completion(Protocol):
    """One step on the device, and what it leaves in host memory."""

    def is_done(self) -> bool: ...

    def results_sync(self) -> list[Tensor]:
        """In host memory, for good. Waits for the device."""
        ...

    @property
    def begin_ns(self) -> int:
        """By the host's clock, as end_ns; both once it is done."""
        ...

    @property
    def end_ns(self) -> int: ...


class Graph(Protocol):
    """Captured work: one launch, however many kernels it is."""

    @property
    def output(self) -> Tensor:
        """What the work returned; each replay writes it anew."""
        ...

    def replay(self) -> None: ...


class Capturer(Protocol):
    """A device that can capture what is queued."""

    def capture(self, work: Callable[[], Tensor], beside: Graph | None) -> Graph:
        """Run `work` once, then capture it. It must read and write the same memory in every replay, and wait
        for nothing.

        Args:
            beside: a graph whose memory it may share: the output of one is valid until a replay of the other.
        """
        ...

    def free_bytes(self) -> int:
        """Of the device's memory, now; what torch keeps for itself is given back first."""
        ...


class Uploader(Protocol):
    """A device with memory of its own."""

    def step_memory(self, num_bytes: int) -> StepMemory: ...

    def upload(self, host: Tensor, device: Tensor, num_bytes: int) -> None:
        """Queue the copy of the first bytes of one to the other, both of a StepMemory. The host's must not
        change until the step is done.
        """
        ...

    def wait_sync(self) -> None:
        """For all that was ever queued."""
        ...


class Device(Protocol):
    """One queue of work, in order. Used by one thread, and so are its graphs; completions by any."""

    @property
    def torch_device(self) -> torch.device: ...

    @property
    def uploader(self) -> Uploader | None:
        """None: it reads host memory."""
        ...

    @property
    def capturer(self) -> Capturer | None:
        """None: it captures nothing."""
        ...

    def active(self) -> AbstractContextManager[object]:
        """Within it, what torch launches is queued here."""
        ...

    def start(self) -> None:
        """What is queued from here on is the next step's."""
        ...

    def finish(self, results: Sequence[Tensor]) -> Completion:
        """The step's end; its results are on their way to host memory."""
        ...

    def wait_sync(self) -> None:
        """For all that was ever queued."""
        ...

    def fork(self) -> "Device":
        """Another queue of the same device."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """Implements Completion, for what is done when it returns."""

    begin_ns: int
    end_ns: int
    results: list[Tensor]

    def is_done(self) -> bool:
        return True

    def results_sync(self) -> list[Tensor]:
        return self.results


class HostDevice:
    """The CPU. Implements Device: nothing is queued, and no copy is made."""

    torch_device = torch.device("cpu")
    uploader = capturer = None

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self._clock = clock
        self._begin_ns = 0

    def active(self) -> AbstractContextManager[object]:
        return nullcontext()

    def start(self) -> None:
        self._begin_ns = self._clock()

    def finish(self, results: Sequence[Tensor]) -> Completion:
        return Done(self._begin_ns, self._clock(), list(results))

    def wait_sync(self) -> None:
        """There is nothing to wait for."""

    def fork(self) -> Device:
        return HostDevice(self._clock)


def open_device(kind: Literal["auto", "cpu", "cuda"], clock: Clock) -> Device:
    """RunnerOptions.device. Raises ConfigError if it is not there."""
    has_cuda = torch.cuda.is_available()
    if kind == "cuda" and not has_cuda:
        raise ConfigError(
            'device = "cuda", but torch sees no CUDA device: install a CUDA build of torch, or set "cpu"'
        )
    if kind == "cpu" or not has_cuda:
        return HostDevice(clock)
    from pipeline.gpu.cuda_device import CudaDevice  # it is made of this module

    return CudaDevice(torch.device("cuda"), clock)
