"""CudaDevice against a torch.cuda that only remembers. No GPU runs here, but each call is one that torch has,
with arguments that it takes, and they come in the order that is meant.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.gpu.cuda_device import CudaDevice

CUDA = torch.device("cuda")


class Calls(list[str]):
    """Names of calls, in order."""

    def check(self, function: Any, *args: Any, **kwargs: Any) -> None:
        """That torch's own takes these arguments."""
        inspect.signature(function).bind(*args, **kwargs)


class FakeStream:
    def __init__(self, calls: Calls, name: str) -> None:
        self._calls, self.name = calls, name

    def wait_event(self, event: "FakeEvent") -> None:
        self._calls.append(f"{self.name} waits for {event.name}")


class FakeEvent:
    def __init__(self, calls: Calls, name: str) -> None:
        self._calls, self.name, self.at_ms = calls, name, 0.0

    def record(self, stream: FakeStream) -> None:
        self._calls.append(f"{self.name} on {stream.name}")
        self.at_ms = float(len(self._calls))

    def synchronize(self) -> None:
        self._calls.append(f"host waits for {self.name}")

    def query(self) -> bool:
        return False

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        return end_event.at_ms - self.at_ms


class FakeGraph:
    """torch.cuda.CUDAGraph."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def replay(self) -> None:
        self._calls.append("replay")

    def pool(self) -> str:
        return "a pool"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls, cuda = Calls(), torch.cuda
    real_graph, real_stream, real_event, names = (
        cuda.graph,
        cuda.Stream,
        cuda.Event,
        iter(["steps", "results"]),
    )
    num_events = iter(range(100))

    def new_stream(*args: Any) -> FakeStream:
        calls.check(real_stream.__new__, real_stream, *args)
        return FakeStream(calls, next(names))

    def new_event(**kwargs: Any) -> FakeEvent:
        calls.check(real_event.__new__, real_event, **kwargs)
        kind = "stamp" if kwargs == {"enable_timing": True} else "event"
        assert kind == "stamp" or kwargs == {"blocking": True}
        return FakeEvent(calls, f"{kind} {next(num_events)}")

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        calls.append(f"on {stream.name}")
        yield
        calls.append(f"off {stream.name}")

    @contextmanager
    def captured(graph: FakeGraph, **kwargs: Any) -> Iterator[None]:
        calls.check(real_graph.__init__, None, graph, **kwargs)
        calls.append(f"capture on {kwargs['stream'].name}, {kwargs['pool']}, {kwargs['capture_error_mode']}")
        yield
        calls.append("captured")

    for name, fake in (
        ("Stream", new_stream),
        ("Event", new_event),
        ("stream", on),
        ("graph", captured),
        ("CUDAGraph", lambda: FakeGraph(calls)),
        ("synchronize", lambda device: calls.append(f"host waits for {device}")),
        ("empty_cache", lambda: calls.append("empty cache")),
        ("mem_get_info", lambda device: (123, 456)),
    ):
        assert hasattr(cuda, name)
        monkeypatch.setattr(cuda, name, fake)
    monkeypatch.setattr(torch, "empty", in_host_memory(torch.empty, calls))
    monkeypatch.setattr(Tensor, "record_stream", lambda _, stream: calls.append(f"kept for {stream.name}"))
    return calls


def in_host_memory(empty: Any, calls: Calls) -> Any:
    """torch.empty, which pins nothing and has no GPU here."""

    def fake(*shape: Any, pin_memory: bool = False, device: Any = None, **kwargs: Any) -> Tensor:
        if pin_memory or device is not None:
            calls.append("pinned" if pin_memory else f"memory on {device}")
        made: Tensor = empty(*shape, **kwargs)
        return made

    return fake


def test_a_step_is_two_stamps_and_one_event_and_its_results_leave_on_a_stream_of_their_own(
    calls: Calls,
) -> None:
    now = 0
    device = CudaDevice(CUDA, lambda: now)
    memory = device.step_memory(64)
    assert calls[-3:] == ["pinned", "pinned", "memory on cuda"] and len(memory.hosts) == 2
    memory.hosts[1].fill_(7)
    calls.clear()
    with device.active():
        device.start()
        device.upload(memory.hosts[1], memory.device, 16)
        step = device.finish([torch.tensor([5, 6])])
    assert memory.device[:16].tolist() == [7] * 16
    assert calls == [
        "on steps",
        "stamp 2 on steps",
        "stamp 3 on steps",
        "results waits for stamp 3",
        "on results",
        "pinned",
        "kept for results",
        "event 4 on results",
        "off results",
        "off steps",
    ]
    calls.clear()
    assert not step.is_done() and not calls
    now = 10**9
    assert step.results_sync()[0].tolist() == [5, 6] and calls == ["host waits for event 4"]
    assert step.end_ns - step.begin_ns == 1_000_000 and step.end_ns == step.end_ns


def test_work_is_run_once_then_captured_beside_the_first(calls: Calls) -> None:
    device = CudaDevice(CUDA)
    calls.clear()

    def work() -> Tensor:
        calls.append("work")
        return torch.ones(3)

    first = device.capture(work, None)
    second = device.capture(work, first)
    second.replay()
    assert calls == [
        "work",
        "capture on steps, None, thread_local",
        "work",
        "captured",
        "work",
        "capture on steps, a pool, thread_local",
        "work",
        "captured",
        "replay",
    ]
    assert first.output.tolist() == [1.0] * 3 and device.capturer.free_bytes() == 123


def test_all_is_waited_for_by_the_device_and_a_fork_has_streams_of_its_own(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = CudaDevice(CUDA)
    device.wait_sync()
    assert calls[-1] == "host waits for cuda"
    names = iter(["other steps", "other results"])
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: FakeStream(calls, next(names)))
    fork = device.fork()
    calls.clear()
    with fork.active():
        fork.start()
    assert calls == ["on other steps", "stamp 4 on other steps", "off other steps"]
