"""Schedule: the actor around core.scheduling. Awaits nothing but its own inbox.

Order inside one wake-up: cancels and results, then the next plan out, then tokens to detokenize - the
device's next step leaves before anybody works on text. A plan needs a credit and room for its tokens
downstream, so a slow text side slows the device instead of filling memory.

Where the scheduler has something to do at a certain time (end a gather window, drop who waited too long), one
timer wakes the stage for the earliest of these.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any

from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.core.flights import Flight
from pipeline.core.gate import Gate
from pipeline.core.policies import make_others
from pipeline.core.scheduling import Scheduler
from pipeline.core.standing import standing_of
from pipeline.messages import (
    Cancel,
    ClearPins,
    DeviceLost,
    DeviceReady,
    DiskMoved,
    DiskMoves,
    FinishReason,
    Pause,
    Rejected,
    Reopen,
    Resume,
    Room,
    SampledBatch,
    StepPlan,
    TokenBatch,
    TokenizedRequest,
    Wake,
)
from pipeline.runtime.equivalence import BY_REQUEST
from pipeline.runtime.stage import Stage, StageContext
from pipeline.runtime.trace import Point
from pipeline.stages.schedule import seen
from pipeline.stages.schedule.opening import open_scheduler, rekey
from pipeline.stages.schedule.options import ScheduleOptions, check_change
from pipeline.telemetry import Telemetry


@dataclass(slots=True)
class ScheduleState:
    """What moves to whoever takes over: the scheduler itself, with all that is on the device for it."""

    scheduler: Scheduler | None = None
    """None: the device is not open yet."""
    options: ScheduleOptions = field(default_factory=ScheduleOptions)
    """By which it has been run; its policies have their own."""
    device_end_ns: dict[int, int] = field(default_factory=dict)
    """The end of each worker's latest step."""


class Schedule(Stage[Any, ScheduleOptions]):
    """Owns every sequence from its arrival to its terminal row.

    Whoever takes over with other options goes by them from the next plan on: who waits queues up anew, who
    runs goes on. What they cannot change is refused (options.FIXED). A batch cannot be taken back, for its
    plans are on the device.
    """

    Options = ScheduleOptions
    takes = (
        TokenizedRequest,
        Rejected,
        Cancel,
        Pause,
        Resume,
        DeviceReady,
        DeviceLost,
        DiskMoved,
        SampledBatch,
    )
    gives = (StepPlan, DiskMoves, Reopen, TokenBatch, Rejected)
    State = ScheduleState
    equivalence = BY_REQUEST

    def __init__(self, ctx: StageContext, options: ScheduleOptions) -> None:
        super().__init__(ctx, options)
        self._scheduler: Scheduler
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._is_open = False
        self._taken_ns = 0
        self._awaits_room = False
        self._device_end_ns: dict[int, int] = {}
        """Of each worker's latest step."""
        self._gate = ctx.resource(Gate)
        self._telemetry = ctx.resource(Telemetry)
        self._journal = self._telemetry.journal
        self._plans = ctx.outlet(StepPlan)
        self._tokens = ctx.outlet(TokenBatch)
        self._on: dict[type, Callable[[Any], None]] = {
            TokenizedRequest: self._add,
            Rejected: self._reject,
            Cancel: self._cancel,
            Pause: self._pause,
            Resume: self._resume,
            SampledBatch: self._apply,
            DeviceReady: self._device_ready,
            DeviceLost: self._device_lost,
            DiskMoved: self._moved,
            Room: self._room,
            Wake: self._wake,
            ClearPins: self._clear_pins,
        }

    def export_state(self) -> ScheduleState:
        scheduler = self._scheduler if self._is_open else None
        return ScheduleState(scheduler, self.options, self._device_end_ns)

    def import_state(self, state: ScheduleState) -> None:
        """Raises ConfigError, with nothing changed, if its options ask for what cannot change under way."""
        if (scheduler := state.scheduler) is not None:
            check_change(state.options, self.options)
            policies = make_others(scheduler.policies, self.options, scheduler.device)
            policies.retentions.check()
            scheduler.go_by(policies)
            self._scheduler = scheduler
            self._serve(scheduler.device)
            self.ctx.inbox.post(Wake())
        self._disarm()
        self._is_open, self._awaits_room = scheduler is not None, False
        self._device_end_ns = state.device_end_ns

    def gauges(self) -> dict[str, float]:
        if not self._is_open:
            return {}
        feed = self._telemetry.kv_events
        events = {} if feed is None else feed.events.gauges()
        return {**seen.gauges(self._scheduler), **self._gate.gauges(), **events}

    def limit(self) -> int:
        if not self._is_open:
            return 0
        return max(0, self.options.max_waiting - self._scheduler.num_waiting)

    async def handle(self, batch: Sequence[Any]) -> None:
        self._taken_ns = self.ctx.clock()
        for message in batch:
            self._on[type(message)](message)
        self._shed()
        self._plan()
        self._move()
        self._tell()
        self._set_timer()
        residents = self._scheduler.residents
        self._gate.planned(residents.num_free_slots, residents.pool.num_free, self._taken_ns)

    async def drain(self) -> None:
        while not self._scheduler.is_idle or self._scheduler.residents.prefixes.is_moving:
            await self.handle(await self.ctx.inbox.recv_control())

    async def stop(self) -> None:
        self._disarm()

    # One method a message -------------------------------------------------------------------

    def _device_ready(self, ready: DeviceReady) -> None:
        card = self.ctx.resource(ModelCard)
        if not self._is_open:
            self._scheduler = open_scheduler(self.options, ready, card, self._telemetry)
            self._is_open = True
        else:
            rekey(self._scheduler, ready, card, self._telemetry)
            for rejected in self._scheduler.device_ready(ready):
                self._refuse(rejected)
        self._serve(ready)

    def _serve(self, ready: DeviceReady) -> None:
        """Let the door and the page know by what is served now."""
        options, scheduler = self.options, self._scheduler
        standing = standing_of(options.policy, options.fair_weights or {})
        max_wait_ns = int(options.max_wait_ms * 1e6) if options.max_wait_ms else None
        self._gate.open(ready, max_wait_ns, standing, scheduler.policies.retentions)
        self._telemetry.occupancy = partial(seen.occupancy, scheduler)

    def _device_lost(self, lost: DeviceLost) -> None:
        now_ns, trace = self._taken_ns, self.ctx.trace
        for request_id in self._scheduler.device_lost(is_out_of_memory=lost.is_out_of_memory):
            trace.record(Point.PREEMPTED, self.ctx.name, request_id, at_ns=now_ns)
            self._journal.preempted(request_id, now_ns)
        self._device_end_ns.clear()
        self.ctx.outlet(Reopen).post(Reopen(self._scheduler.num_steps))

    def _add(self, request: TokenizedRequest) -> None:
        self._gate.tokenized(request.request_id, len(request.token_ids))
        rejected = self._scheduler.add(request)
        if rejected is not None:
            self._refuse(rejected)

    def _reject(self, rejected: Rejected) -> None:
        self._scheduler.add_rejected(rejected.request_id)
        self.ctx.outlet(Rejected).post(rejected)

    def _cancel(self, cancel: Cancel) -> None:
        self._scheduler.cancel(cancel.request_id, cancel.reason)
        if cancel.reason is FinishReason.STOP:  # all others get a terminal row, and are seen there
            self._gate.released(cancel.request_id, self._taken_ns)

    def _pause(self, pause: Pause) -> None:
        self._scheduler.pause(pause.request_id, is_paused=True)

    def _resume(self, resume: Resume) -> None:
        self._scheduler.pause(resume.request_id, is_paused=False)

    def _apply(self, sampled: SampledBatch) -> None:
        if self._scheduler.is_void(sampled.step_id):
            return
        flight = self._scheduler.apply(sampled, self._taken_ns)
        self._gate.prefilled(flight.num_prefill_tokens + flight.num_cached_tokens)
        self._record(flight, sampled.times_ns)

    def _moved(self, moved: DiskMoved) -> None:
        self._scheduler.residents.prefixes.moved(moved)

    def _room(self, _: Room) -> None:
        self._awaits_room = False

    def _wake(self, _: Wake) -> None:
        self._disarm()

    def _clear_pins(self, _: ClearPins) -> None:
        if (pins := self._scheduler.residents.pins) is not None:
            pins.clear()

    # What leaves ----------------------------------------------------------------------------

    def _shed(self) -> None:
        for rejected in self._scheduler.shed(self._taken_ns):
            self._refuse(replace(rejected, retry_after_s=self._gate.retry_after_s()))

    def _refuse(self, rejected: Rejected) -> None:
        self.service.num_errors += 1
        self.ctx.outlet(Rejected).post(rejected)

    def _plan(self) -> None:
        """For every worker. Decode goes first: its sequences hold blocks that others wait for."""
        for worker in reversed(range(len(self._scheduler.roles))):
            self._plan_for(worker)

    def _plan_for(self, worker: int) -> None:
        scheduler = self._scheduler
        while scheduler.num_in_flight_of(worker) < self.options.credits:
            if self._tokens.room() <= scheduler.num_in_flight:
                self._await_room()
                return
            plan = scheduler.plan(self.ctx.clock(), worker)
            if plan is None:
                return
            if not self._plans.offer(plan):
                raise AssertionError("a plan has a credit, and every credit has room")
            self._trace(plan)

    def _move(self) -> None:
        moves = self._scheduler.residents.prefixes.take_moves()
        if moves is not None:
            self.ctx.outlet(DiskMoves).post(moves)

    def _tell(self) -> None:
        if not self._tokens.room():
            self._await_room()
            return
        batch = self._scheduler.take_tokens(self.ctx.clock())
        if batch is None:
            return
        if any(batch.finish_reasons):
            for request_id in compress(batch.request_ids, batch.finish_reasons):
                self._gate.released(request_id, self._taken_ns)
        self._tokens.offer(batch)

    def _await_room(self) -> None:
        if not self._awaits_room:
            self._awaits_room = True
            self._tokens.when_room(lambda: self.ctx.inbox.post(Room()))

    def _set_timer(self) -> None:
        """One timer, for the earliest time that was asked for; it may come early, and then asks again.

        What was due before this wake-up waits for a result or for room, and these will come by themselves.
        """
        wake_ns = self._scheduler.wake_ns
        if wake_ns is None or wake_ns <= self._taken_ns:
            return
        if self._timer is not None and self._timer_ns <= wake_ns:
            return
        self._disarm()
        delay_s = max(0, wake_ns - self.ctx.clock()) / 1e9
        self._timer_ns = wake_ns
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.ctx.inbox.post, Wake())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What is seen ---------------------------------------------------------------------------

    def _trace(self, plan: StepPlan) -> None:
        trace, name = self.ctx.trace, self.ctx.name
        if self._scheduler.roles[plan.worker].admits:
            for admitted in plan.admitted:
                self._gate.started(admitted.request_id, plan.planned_ns)
                trace.record(Point.SCHEDULED, name, admitted.request_id, at_ns=plan.planned_ns)
        for request_id in self._scheduler.last_preempted_ids:
            trace.record(Point.PREEMPTED, name, request_id, at_ns=plan.planned_ns)
            self._journal.preempted(request_id, plan.planned_ns)

    def _record(self, flight: Flight, times_ns: tuple[int, int, int, int, int]) -> None:
        _, begin_ns, end_ns, _, _ = times_ns
        waited_ns = begin_ns - self._device_end_ns.get(flight.worker, begin_ns)
        host_gap_ns = max(0, waited_ns) if flight.is_carried else 0
        self._device_end_ns[flight.worker] = end_ns
        self._journal.step(seen.step_record(flight, times_ns, self._taken_ns, host_gap_ns))
