"""Execute: StepPlan -> StepHandle. Owns the device workers; one per server."""

import asyncio
from collections.abc import Sequence

from pipeline.messages import DeviceReady, DiskMoved, DiskMoves, Message, StepHandle, StepPlan
from pipeline.runtime.bridge import DeviceWorker, Mover, RunnerFactory
from pipeline.runtime.stage import NoOptions, Stage, StageContext
from pipeline.telemetry import Telemetry


class DeviceFailed(Message, frozen=True):
    """A worker's last word, to this stage's own inbox."""

    error: BaseException


class Execute(Stage[StepPlan | DiskMoves | DeviceFailed, NoOptions]):
    """Passes plans to their device workers in order, and the launched steps on to sample; what is to be moved
    beside the steps, to whoever moves it.

    Never waits: the scheduler's credits bound how many plans can be here.
    """

    takes = (StepPlan, DiskMoves)
    gives = (StepHandle, DeviceReady, DiskMoved)

    def __init__(self, ctx: StageContext, options: NoOptions) -> None:
        super().__init__(ctx, options)
        self._factory = ctx.resource(RunnerFactory)
        self._workers: list[DeviceWorker[StepPlan, StepHandle]] = [
            DeviceWorker(self._launched, self._failed) for _ in range(self._factory.num_workers)
        ]
        self._mover: Mover | None = None

    async def start(self) -> None:
        ready, *_ = [await worker.start(self._factory) for worker in self._workers]
        if isinstance(ready, DeviceReady):
            self.ctx.resource(Telemetry).opened(ready)
        self._mover = self._workers[0].mover
        if self._mover is not None:
            loop = asyncio.get_running_loop()
            self._mover.start(lambda moved: loop.call_soon_threadsafe(self._moved, moved))
        self.ctx.outlet(DeviceReady).post(ready)

    async def handle(self, batch: Sequence[StepPlan | DiskMoves | DeviceFailed]) -> None:
        for message in batch:
            if isinstance(message, DeviceFailed):
                raise message.error
            if isinstance(message, DiskMoves):
                assert self._mover is not None, "who has no disk is asked for no moves"
                self._mover.submit(message)
            else:
                self._workers[message.worker].submit(message)

    async def stop(self) -> None:
        for worker in self._workers:
            await worker.stop()

    def _launched(self, handle: StepHandle) -> None:
        if not self.ctx.outlet(StepHandle).offer(handle):
            self._failed(AssertionError("a step has a credit, and every credit has room"))

    def _moved(self, moved: DiskMoved) -> None:
        self.ctx.outlet(DiskMoved).post(moved)

    def _failed(self, error: BaseException) -> None:
        self.ctx.inbox.post(DeviceFailed(error))
