"""Another execute stage takes over: the device stays open, and nothing that is on its way with it is lost."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from pipeline.messages import DeviceLost, DeviceReady, DiskMoved, Reopen, StepHandle, StepPlan
from pipeline.runtime.bridge import Listener, RunnerFactory
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import StageContext
from pipeline.runtime.testing import FakeRunner
from pipeline.stage_api.testing import sample_messages
from pipeline.stages.execute import DeviceFailed, Execute, ExecuteOptions, ExecuteState
from pipeline.telemetry import Telemetry
from tests.moving import Place


class Runner(FakeRunner):
    """It waits in each step until told to go on, and raises when told."""

    def __init__(self) -> None:
        super().__init__(before_step=self._before)
        self.goes_on = threading.Semaphore(0)
        self.raises = False
        self.is_closed = False

    def _before(self, plan: StepPlan) -> None:
        assert self.goes_on.acquire(timeout=5)
        if self.raises:
            self.raises = False
            raise RuntimeError("the device is gone")

    def close(self) -> None:
        self.is_closed = True


class Bay:
    """An execute stage with a device in threads, between open inboxes."""

    def __init__(self, room: int = 8, **options: Any) -> None:
        self.inbox: Inbox[Any] = Inbox(64)
        self.outboxes: dict[type, Inbox[Any]] = {
            kind: Inbox(room) for kind in (StepHandle, DeviceReady, DeviceLost, DiskMoved)
        }
        self.runners: list[Runner] = []
        resources: dict[type, object] = {Telemetry: Telemetry(), RunnerFactory: RunnerFactory(self._open)}
        ctx = StageContext("execute", self.inbox, self.outboxes, resources)
        self.place = Place(Execute(ctx, ExecuteOptions(**options)))
        self.plans = iter(sample_messages(StepPlan, 64))
        self.num_results = 0

    def _open(self) -> Any:
        self.runners.append(Runner())
        return self.runners[-1]

    @property
    def runner(self) -> Runner:
        (runner,) = self.runners
        return runner

    async def plan(self) -> int:
        plan = next(self.plans)
        await self.place.handle([plan])
        return plan.step_id

    async def results(self, count: int) -> list[int]:
        steps: list[int] = []
        while len(steps) < count:
            handles = await asyncio.wait_for(self.outboxes[StepHandle].recv_many(), 5)
            steps += [handle.plan.step_id for handle in handles]
        return steps

    async def posted(self) -> list[Any]:
        """What the stage has posted to itself; waits for it."""
        return await asyncio.wait_for(self.inbox.recv_control(), 5)


def in_bay(body: Callable[[Bay], Awaitable[None]], **bay: Any) -> None:
    async def main() -> None:
        world = Bay(**bay)
        await world.place.stage.start()
        try:
            await body(world)
        finally:
            await world.place.stage.stop()
        assert len(world.runners) == 1 and world.runner.is_closed

    asyncio.run(main())


def test_a_step_under_way_comes_to_who_took_over() -> None:
    async def body(bay: Bay) -> None:
        first = await bay.plan()
        old = bay.place.stage
        await bay.place.move()
        second = await bay.plan()
        bay.runner.goes_on.release(2)
        assert await bay.results(2) == [first, second]
        assert not bay.runner.is_closed, "who was there before is stopped, the device is not"
        assert old.export_state() == ExecuteState(device=old._device)  # type: ignore[attr-defined]
        assert len(await bay.outboxes[DeviceReady].recv_many()) == 1, "the scheduler was told once"

    in_bay(body)


def test_nothing_is_lost_or_doubled_however_often() -> None:
    async def body(bay: Bay) -> None:
        steps: list[int] = []
        for _ in range(20):
            steps.append(await bay.plan())
            await bay.place.move()
            bay.runner.goes_on.release()
            await bay.place.move()
        assert await bay.results(20) == steps

    in_bay(body, room=64)


def test_results_that_found_no_room_wait_with_who_took_over() -> None:
    async def body(bay: Bay) -> None:
        steps = [await bay.plan() for _ in range(4)]
        bay.runner.goes_on.release(4)
        async with asyncio.timeout(5):
            while len(bay.place.stage.export_state().results) < 3:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0)
        await bay.place.move()
        assert await bay.results(4) == steps

    in_bay(body, room=1)


def test_a_device_that_failed_before_is_opened_again_by_who_took_over() -> None:
    async def body(bay: Bay) -> None:
        bay.runner.raises = True
        step = await bay.plan()
        bay.runner.goes_on.release()
        (failed,) = await bay.posted()
        assert isinstance(failed, DeviceFailed)
        await bay.place.move()
        await bay.place.handle([failed])
        (lost,) = await bay.outboxes[DeviceLost].recv_many()
        assert lost.reason == "the device is gone"
        await bay.place.move()
        await bay.place.handle([Reopen(step)])
        assert len(await bay.outboxes[DeviceReady].recv_many()) == 2
        step = await bay.plan()
        bay.runner.goes_on.release()
        assert await bay.results(1) == [step]

    in_bay(body)


def test_what_was_spent_is_spent_by_the_newcomers_bounds() -> None:
    async def body(bay: Bay) -> None:
        error = RuntimeError("gone")
        await bay.place.handle([DeviceFailed(error)])
        await bay.place.move(options=ExecuteOptions(max_restarts=2))
        await bay.place.handle([DeviceFailed(error)])
        await bay.place.move(options=ExecuteOptions(max_restarts=2))
        with pytest.raises(RuntimeError, match="gone"):
            await bay.place.handle([DeviceFailed(error)])

    in_bay(body, max_restarts=1)


class Stuck:
    """A device that ends no step. Implements runtime.bridge.Device."""

    pid = 7

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.is_condemned = self.is_closed = False

    async def open(self) -> Any:
        return DeviceReady(1, 1, 1, 1)

    def submit(self, worker: int, plan: Any) -> None: ...

    def move(self, moves: Any) -> None: ...

    def listen(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def condemn(self) -> bool:
        self.is_condemned = True
        return True

    async def close(self) -> None:
        self.is_closed = True


def test_a_step_that_does_not_end_is_noticed_by_who_took_over() -> None:
    async def body(bay: Bay) -> None:
        ctx = replace(bay.place.stage.ctx, is_successor=True)
        device = Stuck()
        first, second = (Execute(ctx, ExecuteOptions(step_timeout_s=limit)) for limit in (30.0, 0.02))
        first.import_state(ExecuteState(device, is_open=True))
        await first.handle([next(bay.plans)])
        state = first.export_state()
        first.import_state(ExecuteState())
        second.import_state(state)
        (failed,) = await bay.posted()
        assert "has not ended within 0.02 s" in str(failed.error) and device.is_condemned
        await first.stop()
        assert not device.is_closed
        await second.stop()
        assert device.is_closed

    in_bay(body)


def test_who_is_to_take_over_does_not_open_a_device_of_his_own() -> None:
    async def body(bay: Bay) -> None:
        newcomer = Execute(replace(bay.place.stage.ctx, is_successor=True), ExecuteOptions())
        await newcomer.start()
        await newcomer.stop()
        assert len(bay.runners) == 1 and not bay.runner.is_closed
        assert len(await bay.outboxes[DeviceReady].recv_many()) == 1

    in_bay(body)
