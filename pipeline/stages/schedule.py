"""Schedule: the actor around core.scheduling. Awaits nothing but its own inbox.

Order inside one wake-up: cancels and results, then the next plan out, then tokens to detokenize - the
device's next step leaves before anybody works on text. A plan needs a credit and room for its tokens
downstream, so a slow text side slows the device instead of filling memory.

Where the scheduler has something to do at a certain time (end a gather window, drop who waited too long), one
timer wakes the stage for the earliest of these.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.core.flights import Flight
from pipeline.core.gate import Gate
from pipeline.core.kv_events import KvEvents
from pipeline.core.policies import Policies, SchedulingOptions, make_policies
from pipeline.core.prefix import PrefixHash
from pipeline.core.prefix_cache import NoSharing, PrefixCache, SharedPrefixes
from pipeline.core.roles import SEPARATIONS
from pipeline.core.scheduling import Scheduler
from pipeline.core.standing import standing_of
from pipeline.core.tiers import Tiers
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
from pipeline.telemetry import KvFeed, Occupancy, StepRecord, Telemetry
from pipeline.topology import CREDITS


class ScheduleOptions(SchedulingOptions, frozen=True, forbid_unknown_fields=True):
    credits: Annotated[int, msgspec.Meta(ge=1, le=8)] = CREDITS
    """Steps in flight at once, of each device worker."""
    separation: Literal["mixed", "split"] = "mixed"
    """split: one device worker for prefill and one for decode, at the same time, instead of one for both."""
    max_waiting: Annotated[int, msgspec.Meta(ge=1)] = 256
    """Requests that wait for the device; past it they stay in the inbox and hold the pipeline back."""
    prefix_cache: bool = True
    """Whether requests that begin with the same tokens share the KV of these; docs/kv.md."""
    max_pinned_blocks: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Blocks that requests with `cache_pin` may keep cached; 0: none may; docs/kv.md."""
    kv_events: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many events of the prefix cache are kept for routers that subscribe; 0: none are told. They show
    the token ids of prompts to whoever reaches the admin port; docs/kv-events.md."""


class Schedule(Stage[Any, ScheduleOptions]):
    """Owns every sequence from its arrival to its terminal row."""

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
        self._journal = ctx.resource(Telemetry).journal
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
        if self._timer is not None:
            self._timer.cancel()

    # One method a message -------------------------------------------------------------------

    def _device_ready(self, ready: DeviceReady) -> None:
        if not self._is_open:
            self._open(ready)
            return
        self._rekey(ready)
        for rejected in self._scheduler.device_ready(ready):
            self._refuse(rejected)
        self._open_gate(ready)

    def _device_lost(self, lost: DeviceLost) -> None:
        now_ns, trace = self._taken_ns, self.ctx.trace
        for request_id in self._scheduler.device_lost(is_out_of_memory=lost.is_out_of_memory):
            trace.record(Point.PREEMPTED, self.ctx.name, request_id, at_ns=now_ns)
            self._journal.preempted(request_id, now_ns)
        self._device_end_ns.clear()
        self.ctx.outlet(Reopen).post(Reopen(self._scheduler.num_steps))

    def _open(self, ready: DeviceReady) -> None:
        policies = make_policies(self.options, ready)
        policies.retentions.check()
        card, roles = self.ctx.resource(ModelCard), SEPARATIONS[self.options.separation]
        prefixes = self._prefixes(ready, card.name, policies)
        allocation = self.options.allocation
        max_pinned = self.options.max_pinned_blocks
        self._scheduler = Scheduler(ready, card.eos_ids, policies, roles, prefixes, allocation, max_pinned)
        if (pins := self._scheduler.residents.pins) is not None:
            self.ctx.resource(Telemetry).watch(pins.gauges)
        self._is_open = True
        self._open_gate(ready)
        self.ctx.resource(Telemetry).watch(self._gauges)
        self.ctx.resource(Telemetry).watch(self._gate.gauges)
        self.ctx.resource(Telemetry).occupancy = self._occupancy

    def _open_gate(self, ready: DeviceReady) -> None:
        max_wait_ms = self.options.max_wait_ms
        standing = standing_of(self.options.policy, self.options.fair_weights or {})
        max_wait_ns = int(max_wait_ms * 1e6) if max_wait_ms else None
        self._gate.open(ready, max_wait_ns, standing, self._scheduler.policies.retentions)

    def _rekey(self, ready: DeviceReady) -> None:
        """A file that was begun anew has keys of its own."""
        prefixes, telemetry = self._scheduler.residents.prefixes, self.ctx.resource(Telemetry)
        if ready.disk is None or not isinstance(prefixes, PrefixCache):
            return
        prefix_hash = PrefixHash(ready.block_size, self.ctx.resource(ModelCard).name, ready.disk.secret)
        prefixes.rekey(prefix_hash)
        if telemetry.kv_events is not None:
            telemetry.kv_events = telemetry.kv_events._replace(prefix_hash=prefix_hash)

    def _prefixes(self, ready: DeviceReady, model: str, policies: Policies) -> SharedPrefixes:
        if not self.options.prefix_cache:
            return NoSharing()
        secret = ready.disk.secret if ready.disk else secrets.token_bytes(32)
        prefix_hash = PrefixHash(ready.block_size, model, secret)
        cost = policies.cost if ready.num_host_blocks else None
        tiers = Tiers(ready, policies.host, cost) if cost else None
        return PrefixCache(prefix_hash, self._kv_events(prefix_hash, model), tiers)

    def _kv_events(self, prefix_hash: PrefixHash, model: str) -> KvEvents | None:
        if not self.options.kv_events:
            return None
        events = KvEvents(self.options.kv_events, secrets.token_bytes(32))
        telemetry = self.ctx.resource(Telemetry)
        telemetry.kv_events = KvFeed(events, prefix_hash, model, secrets.token_hex(4))
        telemetry.watch(events.gauges)
        return events

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
        self._timer = None

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
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, wake_ns - self.ctx.clock()) / 1e9
        self._timer_ns = wake_ns
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.ctx.inbox.post, Wake())

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
        planned_ns, begin_ns, end_ns, _, sampled_ns = times_ns
        waited_ns = begin_ns - self._device_end_ns.get(flight.worker, begin_ns)
        host_gap_ns = max(0, waited_ns) if flight.is_carried else 0
        self._device_end_ns[flight.worker] = end_ns
        self._journal.step(
            StepRecord(
                step_id=flight.step_id,
                planned_ns=planned_ns,
                begin_ns=begin_ns,
                end_ns=end_ns,
                sampled_ns=sampled_ns,
                applied_ns=self._taken_ns,
                host_gap_ns=host_gap_ns,
                num_rows=flight.num_rows,
                num_prefill_tokens=flight.num_prefill_tokens,
                num_decode_tokens=flight.num_decode_tokens,
                num_running=flight.num_running,
                num_waiting=flight.num_waiting,
                num_used_blocks=flight.num_used_blocks,
                num_kv_tokens=flight.num_kv_tokens,
                num_shared_tokens=flight.num_shared_tokens,
                num_preempted=len(flight.preempted_ids),
                worker=flight.worker,
            )
        )

    def _occupancy(self) -> Occupancy:
        scheduler = self._scheduler
        return Occupancy(
            scheduler.num_running,
            scheduler.num_waiting,
            scheduler.pool.states(),
            scheduler.num_in_flight > 0,
        )

    def _gauges(self) -> dict[str, float]:
        scheduler = self._scheduler
        return {
            "requests_running": scheduler.num_running,
            "requests_waiting": scheduler.num_waiting,
            "preemptions_total": scheduler.num_preemptions,
            "recomputed_requests_total": scheduler.recovery.num_recomputed,
            "preemptions_outranked_total": scheduler.num_outranked,
            "padding_tokens_total": scheduler.num_padding_tokens,
            "steps_total": scheduler.num_steps,
            "steps_in_flight": scheduler.num_in_flight,
            "kv_blocks": scheduler.pool.num_blocks,
            "kv_blocks_used": scheduler.pool.num_owned,
            "kv_blocks_cached": scheduler.pool.num_cached,
            "kv_blocks_saved": scheduler.pool.num_saved,
            "kv_dropped_blocks_total": scheduler.residents.num_dropped_blocks,
            **scheduler.residents.prefixes.gauges(),
            **scheduler.policies.gauges(),
        }
