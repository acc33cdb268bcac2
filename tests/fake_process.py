"""A fake runner in a process of its own: what a RunnerSpec of tests names."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from pipeline.messages import DeviceReady, StepPlan
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.frames import RunnerSpec
from pipeline.runtime.testing import FakeHandle, FakeRunner

CAPACITY = DeviceReady(num_blocks=256, block_size=16, max_num_seqs=32, max_num_batched_tokens=256)


class Script(msgspec.Struct, frozen=True):
    """How a fake runner behaves."""

    capacity: DeviceReady = CAPACITY
    step_s: float = 0.0
    faults: str = ""
    """A file: each step takes a line out of it: `memory` and `fault` are raised."""
    open_s: float = 0.0
    refusal: str = ""
    """Opening raises ConfigError."""
    is_late: bool = False
    """Results are not ready when a launch returns."""


class ScriptedRunner(FakeRunner):
    def __init__(self, script: Script) -> None:
        super().__init__(script.capacity, self._begin)
        self._script = script

    def _begin(self, plan: StepPlan) -> None:
        time.sleep(self._script.step_s)
        if self._script.faults:
            raise_next(Path(self._script.faults))

    def launch(self, plan: StepPlan, /) -> FakeHandle:
        handle = super().launch(plan)
        return LateHandle(handle) if self._script.is_late else handle


class LateHandle(FakeHandle):
    """Whoever wants its tokens waits for 2 ms."""

    def __init__(self, handle: FakeHandle) -> None:
        super().__init__(handle.plan, handle.token_ids_sync(), handle.begin_ns, handle.end_ns)

    def is_ready(self) -> bool:
        return False

    def token_ids_sync(self) -> list[int]:
        time.sleep(0.002)
        return super().token_ids_sync()


def raise_next(faults: Path) -> None:
    first, *rest = faults.read_text().split("\n")
    if rest:
        faults.write_text("\n".join(rest))
    if first == "memory":
        raise MemoryError("the test has taken it all")
    if first == "fault":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def opener(words: bytes, num_workers: int) -> Callable[[], ScriptedRunner]:
    script = msgspec.msgpack.decode(words, type=Script)

    def open_runner() -> ScriptedRunner:
        from pipeline.errors import ConfigError

        time.sleep(script.open_s)
        if script.refusal:
            raise ConfigError(script.refusal)
        return ScriptedRunner(script)

    return open_runner


def factory(script: Script, *, is_process: bool = True, num_workers: int = 1) -> RunnerFactory:
    """Both placements of the same."""
    words = msgspec.msgpack.encode(script)
    open_runner: Callable[[], Any] = opener(words, num_workers)
    spec = RunnerSpec("tests.fake_process:opener", words, num_workers)
    return RunnerFactory(open_runner, process=spec if is_process else None)
