"""The device worker: one thread, results in order, faults come back to the loop."""

import asyncio
import threading

import pytest

from pipeline.runtime.bridge import DeviceWorker, RunnerFactory


class Doubler:
    """A runner that doubles numbers and remembers which threads it saw."""

    capacity = "two"

    def __init__(self) -> None:
        self.threads = {threading.get_ident()}
        self.is_closed = False

    def launch(self, plan: int, /) -> int:
        self.threads.add(threading.get_ident())
        if plan < 0:
            raise ValueError("negative")
        return plan * 2

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.is_closed = True


def test_results_come_in_order_from_one_thread() -> None:
    async def main() -> None:
        runners: list[Doubler] = []
        results: list[int] = []
        done = asyncio.Event()

        def deliver(result: int) -> None:
            results.append(result)
            if len(results) == 100:
                done.set()

        def make() -> Doubler:
            runners.append(Doubler())
            return runners[0]

        worker: DeviceWorker[int, int] = DeviceWorker(deliver, lambda error: None)
        assert await worker.start(RunnerFactory(make)) == "two"
        for k in range(100):
            worker.submit(k)
        await asyncio.wait_for(done.wait(), 5)
        await worker.stop()
        await worker.stop()
        assert results == [2 * k for k in range(100)]
        assert runners[0].is_closed and len(runners[0].threads) == 1
        assert threading.get_ident() not in runners[0].threads

    asyncio.run(main())


def test_a_fault_of_the_runner_is_reported_once_and_the_runner_closed() -> None:
    async def main() -> None:
        runner: list[Doubler] = []
        failed = asyncio.get_running_loop().create_future()

        def make() -> Doubler:
            runner.append(Doubler())
            return runner[0]

        worker: DeviceWorker[int, int] = DeviceWorker(lambda result: None, failed.set_result)
        await worker.start(RunnerFactory(make))
        worker.submit(-1)
        worker.submit(1)
        error = await asyncio.wait_for(failed, 5)
        assert isinstance(error, ValueError)
        await worker.stop()
        assert runner[0].is_closed

    asyncio.run(main())


def test_a_runner_that_cannot_open_fails_start() -> None:
    def make() -> Doubler:
        raise MemoryError("no room")

    async def main() -> None:
        worker: DeviceWorker[int, int] = DeviceWorker(lambda result: None, lambda error: None)
        with pytest.raises(MemoryError, match="no room"):
            await worker.start(RunnerFactory(make))
        await worker.stop()

    asyncio.run(main())
