"""A device in host memory that counts what it is asked for, and is as late as a GPU may be.

Work is done when it is queued, for it is torch on the CPU. But results are copied only when somebody waits
for them, by then from memory that later steps may have written to; what a step has read must not have changed
until it is done; and nothing is done when it is first asked after.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from pipeline.gpu.device import Device, Graph, StepMemory

POISON = 0xA5


class RecordingDevice:
    """Implements Device, Uploader and Capturer."""

    torch_device = torch.device("cpu")

    def __init__(self, *, captures: bool = True, graph_bytes: tuple[int, int] = (1000, 10)) -> None:
        self.counts: Counter[str] = Counter()
        self.forks: list[RecordingDevice] = []
        self.is_hidden = False
        """What runs now is a graph's, or stands for a copy."""
        self.num_free = 10**9
        self._captures, self._graph_bytes = captures, graph_bytes
        self._is_active = False
        self._hosts: list[Tensor] = []
        self._reads: list[tuple[Tensor, Tensor]] = []
        """Host memory that the step being queued reads, and what is in it."""

    @property
    def uploader(self) -> "RecordingDevice":
        return self

    @property
    def capturer(self) -> "RecordingDevice | None":
        return self if self._captures else None

    @contextmanager
    def active(self) -> Iterator[None]:
        self._is_active = True
        try:
            yield
        finally:
            self._is_active = False

    def step_memory(self, num_bytes: int) -> StepMemory:
        self.counts["allocations"] += 1
        hosts = [torch.full((num_bytes,), POISON, dtype=torch.uint8) for _ in range(2)]
        self._hosts += hosts
        return StepMemory(hosts, torch.full((num_bytes,), POISON, dtype=torch.uint8))

    def upload(self, host: Tensor, device: Tensor, num_bytes: int) -> None:
        assert self._is_active, "queued elsewhere"
        assert any(host is each for each in self._hosts), "a copy of memory that is not pinned waits"
        self.counts["uploads"] += 1
        with self.hidden():
            device[:num_bytes].copy_(host[:num_bytes])
            self._reads.append((host, host.clone()))

    def start(self) -> None:
        assert self._is_active
        self.counts["starts"] += 1

    def finish(self, results: Sequence[Tensor]) -> "LateStep":
        assert self._is_active
        self.counts["finishes"] += 1
        reads, self._reads = self._reads, []
        with self.hidden():
            return LateStep(self, list(results), reads, self.counts["finishes"])

    def wait_sync(self) -> None:
        self.counts["device waits"] += 1
        self._reads = []

    def fork(self) -> Device:
        self.forks.append(RecordingDevice(captures=self._captures))
        return self.forks[-1]

    def capture(self, work: Callable[[], Tensor], beside: Graph | None) -> "RecordedGraph":
        assert self._is_active
        self.counts["captures"] += 1
        self.num_free -= self._graph_bytes[beside is not None]
        with self.hidden():
            work()
            return RecordedGraph(self, work, work())

    def free_bytes(self) -> int:
        return self.num_free

    @contextmanager
    def hidden(self) -> Iterator[None]:
        self.is_hidden = True
        try:
            yield
        finally:
            self.is_hidden = False


class RecordedGraph:
    """Runs the work again, on the memory that it was captured with. Implements Graph."""

    def __init__(self, device: RecordingDevice, work: Callable[[], Tensor], output: Tensor) -> None:
        self._device, self._work, self.output = device, work, output

    def replay(self) -> None:
        self._device.counts["replays"] += 1
        with self._device.hidden():
            self.output.copy_(self._work())


class LateStep:
    """Implements Completion."""

    def __init__(
        self, device: RecordingDevice, results: list[Tensor], reads: list[tuple[Tensor, Tensor]], number: int
    ) -> None:
        self._device, self._results, self._reads = device, results, reads
        self._copies = [torch.full_like(result, -7777) for result in results]
        self._was_asked = self._is_seen = False
        self.begin_ns, self.end_ns = 10 * number, 10 * number + 9

    def is_done(self) -> bool:
        if self._was_asked:
            self._see()
        self._was_asked = True
        return self._is_seen

    def results_sync(self) -> list[Tensor]:
        self._device.counts["waits"] += not self._is_seen
        self._see()
        return self._copies

    @torch.inference_mode()
    def _see(self) -> None:
        if not self._is_seen:
            self._is_seen = True
            with self._device.hidden():
                for host, before in self._reads:
                    assert torch.equal(host, before), "host memory was written to while the device read it"
                for copy, result in zip(self._copies, self._results, strict=True):
                    copy.copy_(result)
