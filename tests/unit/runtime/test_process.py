"""The process of the device workers: what it answers, and that it comes and goes with its server."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.errors import ConfigError
from pipeline.messages import Admitted, SamplingParams, StepPlan
from pipeline.runtime.bridge import Listener
from pipeline.runtime.process import DeviceDied, ProcessDevice
from pipeline.runtime.testing import fake_embedding, fake_token
from tests.fake_process import CAPACITY, Script, factory

ROOT = Path(__file__).parents[3]


def plan(step_id: int, position: int = 4) -> StepPlan:
    """One decode row of a request with seed 5."""
    admitted = [Admitted(0, SamplingParams(seed=5), 9)]
    return StepPlan(step_id, 0, [9], [0], [0], [1], [position], [True], [1], admitted, [0], [0], [0])


class Desk:
    """A device in a process, and what it has told."""

    def __init__(self, script: Script) -> None:
        self.results: list[Any] = []
        self.faults: list[BaseException] = []
        self._heard = asyncio.Event()
        spec = factory(script).process
        assert spec is not None
        self.device = ProcessDevice(spec, Listener(self._launched, lambda moved: None, self._failed))

    def _launched(self, result: Any) -> None:
        self.results.append(result)
        self._heard.set()

    def _failed(self, error: BaseException) -> None:
        self.faults.append(error)
        self._heard.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_so():
                self._heard.clear()
                await self._heard.wait()


def run(test: Callable[[Desk], Awaitable[None]], script: Script = Script()) -> None:  # noqa: B008 - frozen
    """And see to it that nothing is left: no file, no process."""

    async def main() -> None:
        desk = Desk(script)
        try:
            await test(desk)
        finally:
            pid = desk.device.pid
            await desk.device.close()
            await desk.device.close()
        assert not pid or not is_there(pid)

    before = sorted(os.listdir("/proc/self/fd"))
    asyncio.run(main())
    assert sorted(os.listdir("/proc/self/fd")) == before


def is_there(pid: int) -> bool:
    """As a process or a zombie."""
    return Path(f"/proc/{pid}").exists()


def test_steps_come_back_with_their_tokens_and_times() -> None:
    async def test(desk: Desk) -> None:
        assert await desk.device.open() == CAPACITY
        begin_ns = time.perf_counter_ns()
        for k in range(50):
            desk.device.submit(0, plan(k + 1, 4 + k))
        await desk.until(lambda: len(desk.results) == 50)
        for k, step in enumerate(desk.results):
            assert step.plan.step_id == k + 1 and step.is_ready()
            assert step.token_ids_sync() == [fake_token(SamplingParams(seed=5), 5 + k)]
            assert step.drops_sync() == [] and step.logprobs_sync() is None
            assert begin_ns < step.begin_ns <= step.end_ns < time.perf_counter_ns(), "one clock for both"

    run(test)


def test_whoever_listens_is_told_also_of_what_was_given_before() -> None:
    async def test(desk: Desk) -> None:
        await desk.device.open()
        late: list[Any] = []

        def launched(step: Any) -> None:
            late.append(step)
            desk._launched(step)

        for step_id in (1, 2):
            desk.device.submit(0, plan(step_id))
        desk.device.listen(Listener(launched, print, print))
        desk.device.submit(0, plan(3))
        await desk.until(lambda: len(desk.results) == 3)
        assert late == desk.results

    run(test)


def test_embeddings_come_back_with_their_rows() -> None:
    async def test(desk: Desk) -> None:
        await desk.device.open()
        desk.device.submit(0, replace(plan(1, 4), samples=[False], pooled=[0]))
        await desk.until(lambda: len(desk.results) == 1)
        (step,) = desk.results
        assert step.token_ids_sync() == [] and step.embeddings_sync() == [fake_embedding(5)]

    run(test)


def test_results_that_are_awaited_come_in_order_too() -> None:
    async def test(desk: Desk) -> None:
        await desk.device.open()
        for k in range(10):
            desk.device.submit(0, plan(k + 1))
        await desk.until(lambda: len(desk.results) == 10)
        assert [step.plan.step_id for step in desk.results] == list(range(1, 11))

    run(test, Script(is_late=True))


def test_what_is_wrong_with_the_configuration_is_said_as_such() -> None:
    async def test(desk: Desk) -> None:
        with pytest.raises(ConfigError, match="no such device"):
            await desk.device.open()

    run(test, Script(refusal="there is no such device"))


def test_signals_are_the_servers() -> None:
    """Ctrl-C and systemd's SIGTERM reach all processes of a server; the workers go on while it drains."""

    async def test(desk: Desk) -> None:
        await desk.device.open()
        assert os.getpgid(desk.device.pid) != os.getpgid(0), "no Ctrl-C of a terminal reaches it"
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(desk.device.pid, number)
        desk.device.submit(0, plan(1))
        await desk.until(lambda: bool(desk.results))
        assert not desk.faults

    run(test)


def test_a_process_that_is_killed_is_a_fault_and_the_next_one_another() -> None:
    async def test(desk: Desk) -> None:
        await desk.device.open()
        first = desk.device.pid
        desk.device.submit(0, plan(1))
        os.kill(first, signal.SIGKILL)
        await desk.until(lambda: bool(desk.faults))
        assert isinstance(desk.faults[0], DeviceDied) and "SIGKILL" in str(desk.faults[0])
        desk.device.submit(0, plan(2))  # it may not be known yet: lost, and no error
        await desk.device.open()
        assert desk.device.pid != first and not is_there(first)
        desk.device.submit(0, plan(3))
        await desk.until(lambda: any(step.plan.step_id == 3 for step in desk.results))
        assert len(desk.faults) == 1

    run(test)


def test_closing_while_it_loads_takes_no_time() -> None:
    async def test(desk: Desk) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(desk.device.open(), 0.5)
        begin_s = time.monotonic()
        await desk.device.close()
        assert time.monotonic() - begin_s < 5

    run(test, Script(open_s=60))


SERVER = """
import asyncio
from pipeline.runtime.bridge import Listener
from pipeline.runtime.process import ProcessDevice
from tests.fake_process import Script, factory

async def main():
    device = ProcessDevice(factory(Script()).process, Listener(print, print, print))
    await device.open()
    print(device.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_it_does_not_outlive_a_server_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert is_there(pid)
        server.kill()
    until_s = time.monotonic() + 10
    while is_there(pid) and not _is_zombie(pid):
        assert time.monotonic() < until_s, "it is still there"
        time.sleep(0.01)


def _is_zombie(pid: int) -> bool:
    """Whoever adopted it has not reaped it yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
