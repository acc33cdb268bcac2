"""Execute: StepPlan -> StepHandle. Owns the device and its workers; one per server.

A device that is lost (a runner raised, its process died) is opened again: the scheduler is told, forgets all
that was there, and answers with Reopen; what comes with DeviceReady then starts empty. That happens a few
times at most: past the budget the fault is the pipeline's end.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from pipeline.messages import (
    DeviceLost,
    DeviceReady,
    DiskMoved,
    DiskMoves,
    Message,
    Reopen,
    StepHandle,
    StepPlan,
)
from pipeline.runtime.bridge import Device, Listener, RunnerFactory, ThreadDevice
from pipeline.runtime.equivalence import BY_REQUEST
from pipeline.runtime.process import DeviceDied, ProcessDevice
from pipeline.runtime.stage import Stage, StageContext
from pipeline.runtime.watchdog import Watchdog
from pipeline.telemetry import Telemetry

Count = Annotated[int, msgspec.Meta(ge=0)]


class ExecuteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_restarts: Count = 3
    """So often the device workers are started again after a fault,"""
    max_out_of_memory: Count = 6
    """and so often steps may find no memory, each time followed by smaller ones;"""
    restart_window_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    """within this time. One more ends the server."""
    step_timeout_s: Annotated[float, msgspec.Meta(ge=0)] = 120.0
    """A step that takes longer is a fault of the process of the device workers; 0: none is. Threads are not
    watched, for they cannot be ended."""


@dataclass(slots=True)
class ExecuteState:
    """What moves to whoever takes over, the device and all that is on its way with it."""

    device: Device | None = None
    """None: it is still to be made and opened."""
    is_open: bool = False
    """It takes plans. If not, a DeviceFailed or a Reopen is on its way."""
    last_void_step: int = 0
    """Up to this one, steps count as never run."""
    results: deque[StepHandle] = field(default_factory=deque)
    """For which sample has had no room yet."""
    restarts_ns: Sequence[int] = ()
    """When faults were spent of max_restarts, and"""
    shortages_ns: Sequence[int] = ()
    """of max_out_of_memory."""
    begun_s: dict[int, float] = field(default_factory=dict)
    """When the steps under way began, by the loop's clock, where somebody watches."""


class DeviceFailed(Message, frozen=True):
    """A device's word, to this stage's own inbox."""

    error: BaseException


class Budget:
    """At most `limit` within `window_ns`."""

    def __init__(self, limit: int, window_ns: int) -> None:
        self._limit = limit
        self._window_ns = window_ns
        self._spent_ns: deque[int] = deque()

    @property
    def spent_ns(self) -> Sequence[int]:
        """When."""
        return tuple(self._spent_ns)

    def go_on(self, spent_ns: Iterable[int]) -> None:
        """So much of another one's was spent."""
        self._spent_ns = deque(spent_ns)

    def spend(self, now_ns: int) -> bool:
        """Whether there was one left."""
        while self._spent_ns and self._spent_ns[0] <= now_ns - self._window_ns:
            self._spent_ns.popleft()
        if len(self._spent_ns) >= self._limit:
            return False
        self._spent_ns.append(now_ns)
        return True


class Execute(Stage[Any, ExecuteOptions]):
    """Passes plans to their device workers in order, and the launched steps on to sample; what is to be moved
    beside the steps, to whoever moves it.

    Never waits but for a device that is opened: the scheduler's credits bound how many plans can be here.

    Whoever takes over gets the open device; its own options hold from then on. A batch cannot be taken back,
    for the device has it.
    """

    Options = ExecuteOptions
    takes = (StepPlan, DiskMoves, Reopen)
    gives = (StepHandle, DeviceReady, DeviceLost, DiskMoved)
    State = ExecuteState
    equivalence = BY_REQUEST

    def __init__(self, ctx: StageContext, options: ExecuteOptions) -> None:
        super().__init__(ctx, options)
        self._device = self._new_device()
        window_ns = int(options.restart_window_s * 1e9)
        self._restarts = Budget(options.max_restarts, window_ns)
        self._shortages = Budget(options.max_out_of_memory, window_ns)
        self._watchdog = Watchdog(options.step_timeout_s, self._overdue)
        self._is_open = False
        self._last_void_step = 0
        self._results: deque[StepHandle] = deque()
        """Of steps for which sample has no room, since results of a device that was lost are in its inbox."""

    async def start(self) -> None:
        if not self.ctx.is_successor:
            self._open(await self._device.open())

    def export_state(self) -> ExecuteState:
        return ExecuteState(
            self._device,
            self._is_open,
            self._last_void_step,
            self._results,
            self._restarts.spent_ns,
            self._shortages.spent_ns,
            self._watchdog.begun_s,
        )

    def import_state(self, state: ExecuteState) -> None:
        self._device = state.device or self._new_device()
        self._device.listen(self._listener())
        self._is_open, self._last_void_step = state.is_open, state.last_void_step
        self._restarts.go_on(state.restarts_ns)
        self._shortages.go_on(state.shortages_ns)
        self._watchdog.go_on(state.begun_s)
        self._results = state.results
        if self._results:
            self.ctx.outlet(StepHandle).when_room(self._pass_on)

    async def handle(self, batch: Sequence[Any]) -> None:
        for message in batch:
            if isinstance(message, StepPlan):
                if self._is_open and message.step_id > self._last_void_step:
                    self._device.submit(message.worker, message)
                    self._watchdog.begin(message.step_id)
            elif isinstance(message, DiskMoves):
                if self._is_open:
                    self._device.move(message)
            elif isinstance(message, Reopen):
                self._last_void_step = message.last_step_id
                await self._reopen()
            else:
                self._lose(message.error)

    async def stop(self) -> None:
        self._watchdog.clear()
        await self._device.close()

    def _listener(self) -> Listener:
        return Listener(self._launched, self._moved, self._failed)

    def _new_device(self) -> Device:
        factory = self.ctx.resource(RunnerFactory)
        if factory.process is None:
            return ThreadDevice(factory, self._listener())
        return ProcessDevice(factory.process, self._listener())

    # Lost, and opened again -----------------------------------------------------------------

    def _overdue(self) -> None:
        if self._device.condemn():
            self._failed(DeviceDied(f"a step has not ended within {self.options.step_timeout_s:g} s"))

    def _failed(self, error: BaseException) -> None:
        if self._is_open:  # else that is known
            self._is_open = False
            self._watchdog.clear()
            self.ctx.inbox.post(DeviceFailed(error))

    def _lose(self, error: BaseException) -> None:
        is_out_of_memory = isinstance(error, MemoryError)
        budget = self._shortages if is_out_of_memory else self._restarts
        if not budget.spend(self.ctx.clock()):
            raise error
        reason = str(error) or repr(error)
        self._results.clear()
        self.ctx.log.error(
            "the device is lost; live requests are computed anew",
            reason=reason,
            out_of_memory=is_out_of_memory,
            exc_info=error if error.__traceback__ is not None else None,
        )
        self.ctx.resource(Telemetry).worker.lost(reason, is_out_of_memory=is_out_of_memory)
        self.ctx.outlet(DeviceLost).post(DeviceLost(reason, is_out_of_memory))

    async def _reopen(self) -> None:
        begin_ns = self.ctx.clock()
        while True:
            try:
                ready = await self._device.open()
                break
            except Exception as error:
                if not self._restarts.spend(self.ctx.clock()):
                    raise
                self.ctx.log.warning("the device does not open", reason=str(error) or repr(error))
        self._open(ready)
        self.ctx.log.warning(
            "the device is open again", after_s=round((self.ctx.clock() - begin_ns) / 1e9, 2)
        )

    def _open(self, ready: DeviceReady) -> None:
        self._is_open = True
        telemetry = self.ctx.resource(Telemetry)
        telemetry.opened(ready)
        telemetry.worker.opened(self._device.pid)
        self.ctx.outlet(DeviceReady).post(ready)

    # What the device says -------------------------------------------------------------------

    def _launched(self, handle: StepHandle) -> None:
        self._watchdog.end(handle.plan.step_id)
        if self._is_open and handle.plan.step_id > self._last_void_step:
            self._results.append(handle)
            self._pass_on()

    def _pass_on(self) -> None:
        outlet = self.ctx.outlet(StepHandle)
        while self._results and outlet.offer(self._results[0]):
            self._results.popleft()
        if self._results:
            outlet.when_room(self._pass_on)

    def _moved(self, moved: DiskMoved) -> None:
        if self._is_open:
            self.ctx.outlet(DiskMoved).post(moved)
