"""Device threads: one runner each, results in order; a fault comes back to the loop, and ends none."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pipeline.runtime.bridge import Listener, RunnerFactory, ThreadDevice, failure_of


class Doubler:
    """A runner that doubles numbers and remembers which threads it saw; it has no room for large ones."""

    capacity = "two"

    def __init__(self) -> None:
        self.threads = {threading.get_ident()}
        self.launched: list[int] = []
        self.is_closed = False

    def launch(self, plan: int, /) -> int:
        self.threads.add(threading.get_ident())
        if plan < 0:
            raise ValueError("negative")
        if plan > 1000:
            raise MemoryError(f"no room for {plan}")
        self.launched.append(plan)
        return plan * 2

    def renew(self) -> str:
        return "renewed"

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.is_closed = True


class Desk:
    """A device of doublers, and what it has told."""

    def __init__(self, num_workers: int = 1, make: Callable[[], Any] = Doubler) -> None:
        self.runners: list[Doubler] = []
        self.results: list[int] = []
        self.faults: list[BaseException] = []
        self._heard = asyncio.Event()
        self._make = make
        listener = Listener(self._launched, lambda moved: None, self._failed)
        self.device = ThreadDevice(RunnerFactory(self._open, num_workers), listener)

    def _open(self) -> Any:
        self.runners.append(self._make())
        return self.runners[-1]

    def _launched(self, result: int) -> None:
        self.results.append(result)
        self._heard.set()

    def _failed(self, error: BaseException) -> None:
        self.faults.append(error)
        self._heard.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not is_so():
                self._heard.clear()
                await self._heard.wait()


def run(test: Callable[[Desk], Awaitable[None]], *args: Any) -> None:
    async def main() -> None:
        desk = Desk(*args)
        try:
            await test(desk)
        finally:
            await desk.device.close()
            await desk.device.close()
        assert all(runner.is_closed for runner in desk.runners)

    asyncio.run(main())


def test_results_come_in_order_from_one_thread() -> None:
    async def test(desk: Desk) -> None:
        assert await desk.device.open() == "two"
        for k in range(100):
            desk.device.submit(0, k)
        await desk.until(lambda: len(desk.results) == 100)
        assert desk.results == [2 * k for k in range(100)]
        assert len(desk.runners[0].threads) == 1
        assert threading.get_ident() not in desk.runners[0].threads

    run(test)


def test_whoever_listens_is_told_also_of_what_was_given_before() -> None:
    async def test(desk: Desk) -> None:
        await desk.device.open()
        late: list[int] = []

        def launched(step: int) -> None:
            late.append(step)
            desk._launched(step)

        for step_id in (1, 2):
            desk.device.submit(0, step_id)
        desk.device.listen(Listener(launched, print, print))
        desk.device.submit(0, 3)
        await desk.until(lambda: len(desk.results) == 3)
        assert late == desk.results

    run(test)


def test_each_worker_has_a_runner_and_a_thread_of_its_own() -> None:
    async def test(desk: Desk) -> None:
        await desk.device.open()
        desk.device.submit(0, 1)
        desk.device.submit(1, 2)
        await desk.until(lambda: len(desk.results) == 2)
        assert [runner.launched for runner in desk.runners] == [[1], [2]]
        assert desk.runners[0].threads.isdisjoint(desk.runners[1].threads)

    run(test, 2)


def test_a_runner_that_raises_runs_no_plan_from_before_it_is_opened_again() -> None:
    async def test(desk: Desk) -> None:
        await desk.device.open()
        for plan in (1, -1, 2, 3):
            desk.device.submit(0, plan)
        await desk.until(lambda: bool(desk.faults))
        desk.device.submit(0, 4)
        assert await desk.device.open() == "renewed"
        desk.device.submit(0, 5)
        await desk.until(lambda: 10 in desk.results)
        assert isinstance(desk.faults[0], ValueError) and len(desk.faults) == 1
        assert desk.runners[0].launched == [1, 5] and desk.results == [2, 10]

    run(test)


def test_a_lack_of_memory_is_told_as_such_and_holds_nothing_of_the_step() -> None:
    async def test(desk: Desk) -> None:
        await desk.device.open()
        desk.device.submit(0, 1001)
        await desk.until(lambda: bool(desk.faults))
        assert isinstance(desk.faults[0], MemoryError) and "no room for 1001" in str(desk.faults[0])
        assert desk.faults[0].__traceback__ is None

    run(test)


def test_what_counts_as_a_lack_of_memory() -> None:
    class OutOfMemoryError(RuntimeError):
        """As torch's is."""

    cpu = "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried 9"
    for error in (MemoryError(), OutOfMemoryError("CUDA out of memory."), RuntimeError(cpu)):
        assert isinstance(failure_of(error), MemoryError)
    assert isinstance(failure_of(RuntimeError("CUDA error: an illegal memory access")), RuntimeError)


def test_a_runner_that_cannot_open_fails_the_opening() -> None:
    def make() -> Doubler:
        raise MemoryError("no room")

    async def main() -> None:
        desk = Desk(1, make)
        with pytest.raises(MemoryError, match="no room"):
            await desk.device.open()
        await desk.device.close()

    asyncio.run(main())
