"""Replica: one server on virtual time. The scheduler is the real one; this plays its shell and its device.

As stages.schedule does: a result in, those who waited in vain out, the next plans out as far as credits go,
then tokens out. The device runs one step after the other; a step that is planned while another runs follows
it after `gap_ns`. A request ends by its own end-of-text token, which only the device can foresee.
"""

from collections import deque
from itertools import compress
from typing import NamedTuple

from msgspec.structs import replace

from pipeline.core.prefix_cache import NoSharing
from pipeline.core.scheduling import Scheduler
from pipeline.messages import Rejected, SampledBatch, SamplingParams, StepPlan, TokenizedRequest
from pipeline.simulate.door import OpenDoor
from pipeline.simulate.fast_forward import num_alike, num_kv_tokens, skip
from pipeline.simulate.host import HostCosts
from pipeline.simulate.ledger import Ledger, Track
from pipeline.simulate.work import Cost, StepWork, work_of
from pipeline.simulate.workload import TOKEN, Arrival, prompt_of
from pipeline.topology import CREDITS

EOS = 2
"""The token that ends an answer; all others are TOKEN."""
WORTHWHILE = 3
"""Steps alike from which on skipping them costs less than planning them."""
FOREVER = 1 << 62


class InFlight(NamedTuple):
    """A step between its plan and its result."""

    plan: StepPlan
    work: StepWork
    begin_ns: int
    end_ns: int


class Replica:
    """Time moves only through `advance` and `add`, never back.

    Args:
        scheduler: one whose eos_ids are (EOS,).
        door: who is let in; None: everybody.
        is_padded: whether the device computes the padding of static batches, which our runner is spared.
        can_skip: whether steps that are alike may be skipped (fast_forward); results do not differ.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: Cost,
        host: HostCosts,
        *,
        door: OpenDoor | None = None,
        is_padded: bool = False,
        can_skip: bool = True,
        credits: int = CREDITS,
    ) -> None:
        self.scheduler = scheduler
        self.refused: list[str] = []
        """Codes of the requests that were sent away, at the door or later."""
        self.ledger = Ledger()
        self.num_steps = 0
        self.busy_ns = 0
        """Of the device."""
        self._cost = cost
        self._host = host
        self._door = door or OpenDoor()
        self._is_padded = is_padded
        self._can_skip = can_skip and credits == 2 and not self._door.is_watching
        self._can_skip = self._can_skip and isinstance(scheduler.residents.prefixes, NoSharing)
        self._credits = credits
        self._in_flight: deque[InFlight] = deque()
        self._device_end_ns = 0
        self._held_ns = 0
        """Up to when the tokens held are accounted."""

    def add(self, index: int, arrival: Arrival, now_ns: int) -> None:
        """A request reaches the scheduler's queue at `now_ns`, up to which `advance` has come."""
        track = Track(index, arrival.at_ns, arrival.num_input, arrival.num_output, arrival.terms.tenant)
        request = TokenizedRequest(
            len(self.ledger.tracks),
            prompt_of(arrival),
            SamplingParams(max_tokens=arrival.max_tokens or arrival.num_output),
            arrival.at_ns,
            now_ns,
            (now_ns - arrival.at_ns, 0, 0),
            arrival.terms,
        )
        code = self._door.refusal(request)
        if code is not None:
            self.refused.append(code)
            return
        self.ledger.add(track)
        rejected = self.scheduler.add(request)
        if rejected is not None:
            self._refuse(rejected, now_ns)
        self._plan(now_ns)
        self._door.planned(self.scheduler, now_ns)

    def advance(self, until_ns: int) -> None:
        """Take in all results due at or before `until_ns`, and plan on."""
        in_flight, result_ns, scheduler = self._in_flight, self._host.result_ns, self.scheduler
        while True:
            next_ns = in_flight[0].end_ns + result_ns if in_flight else FOREVER
            wake_ns = scheduler.wake_ns if scheduler.num_waiting else None
            if wake_ns is not None and self._held_ns < wake_ns < next_ns:
                if wake_ns > until_ns:
                    return
                self._plan(wake_ns)
                self._door.planned(scheduler, wake_ns)
                continue
            if not in_flight or next_ns > until_ns:
                return
            self._take(in_flight.popleft())
            if self._can_skip and len(in_flight) == 2:
                self._skip(until_ns)

    def finish(self) -> None:
        """Run until nothing is left to do."""
        self.advance(FOREVER - 1)
        if not self.scheduler.is_idle:
            raise AssertionError("the scheduler has sequences, but plans no step for them")

    # One step -------------------------------------------------------------------------------

    def _take(self, step: InFlight) -> None:
        """The result of the oldest step in flight reaches the scheduler."""
        now_ns = step.end_ns + self._host.result_ns
        self._hold(now_ns)
        plan = step.plan
        is_whole = step.work.num_sampled == step.work.num_rows
        request_ids = plan.request_ids if is_whole else list(compress(plan.request_ids, plan.samples))
        epochs = plan.epochs if is_whole else list(compress(plan.epochs, plan.samples))
        times_ns = (plan.planned_ns, step.begin_ns, step.end_ns, step.end_ns, now_ns)
        token_ids = [TOKEN] * len(request_ids)
        for place in self.ledger.last_rows(request_ids):
            token_ids[place] = EOS
        drops = [list(range(ask.first_col, ask.first_col + ask.num_drops)) for ask in plan.questions]
        sampled = SampledBatch(plan.step_id, request_ids, epochs, token_ids, times_ns, drops)
        self._door.applied(self.scheduler.apply(sampled, now_ns))
        self._plan(now_ns)
        batch = self.scheduler.take_tokens(now_ns)
        if batch is not None:
            for request_id in self.ledger.tokens(batch, now_ns):
                self._door.ended(request_id, self.ledger.tracks[request_id].num_tokens, now_ns)
        self._door.planned(self.scheduler, now_ns)

    def _plan(self, now_ns: int) -> None:
        self._hold(now_ns)
        scheduler = self.scheduler
        for rejected in scheduler.shed(now_ns):
            self._refuse(rejected, now_ns)
        while scheduler.num_in_flight < self._credits:
            num_padding = scheduler.num_padding_tokens
            plan = scheduler.plan(now_ns)
            if plan is None:
                return
            if plan.admitted:
                admitted = [each.request_id for each in plan.admitted]
                self.ledger.admitted(admitted, now_ns)
                self._door.started(admitted, now_ns)
            work = work_of(plan)
            if self._is_padded:
                num_tokens = work.num_tokens + scheduler.num_padding_tokens - num_padding
                work = work._replace(num_tokens=num_tokens)
            self._in_flight.append(InFlight(plan, work, *self._run(work, now_ns)))

    def _run(self, work: StepWork, now_ns: int) -> tuple[int, int]:
        """When the device begins and ends a step planned now."""
        begin_ns = max(now_ns + self._host.launch_ns, self._device_end_ns + self._host.gap_ns)
        cost_ns = self._cost.step_ns(work)
        self.num_steps += 1
        self.busy_ns += cost_ns
        self._device_end_ns = begin_ns + cost_ns
        return begin_ns, self._device_end_ns

    def _refuse(self, rejected: Rejected, now_ns: int) -> None:
        self.refused.append(rejected.code or rejected.message)
        self.ledger.refused()
        self._door.ended(rejected.request_id, 0, now_ns)

    def _hold(self, now_ns: int) -> None:
        self.ledger.hold(self.scheduler.residents.num_kv_tokens, now_ns - self._held_ns)
        self.ledger.run(self.scheduler.num_running, self.scheduler.num_waiting, now_ns - self._held_ns)
        self._held_ns = now_ns

    # Steps alike ----------------------------------------------------------------------------

    def _skip(self, until_ns: int) -> None:
        """Run the steps alike that lie ahead without planning them, up to `until_ns`.

        They stand between those applied and the two in flight, which move behind them.
        """
        first, second = self._in_flight
        if self.ledger.going != first.plan.request_ids or second.work.num_tokens != second.work.num_rows:
            return
        now_ns = first.end_ns + self._host.result_ns
        num_alike_ahead = num_alike(self.scheduler, first.plan, second.plan, now_ns)
        limit = min(self.ledger.num_steps_to_end - 1, num_alike_ahead)
        if limit < WORTHWHILE:
            return
        wake_ns = self.scheduler.wake_ns
        if wake_ns is not None:
            until_ns = min(until_ns, wake_ns - 1)
        times, count = self._run_alike(first, second, limit, until_ns)
        if not count:
            return
        skip(self.scheduler, count)
        self._in_flight.clear()
        for step, (begin_ns, end_ns) in zip((first, second), times, strict=True):
            plan = replace(step.plan, step_id=step.plan.step_id + count)
            work = _longer(step.work, count * step.work.num_rows)
            self._in_flight.append(InFlight(plan, work, begin_ns, end_ns))

    def _run_alike(
        self, first: InFlight, second: InFlight, limit: int, until_ns: int
    ) -> tuple[tuple[tuple[int, int], tuple[int, int]], int]:
        """The times of the last two of the steps, and how many results were taken in by `until_ns`."""
        host, append = self._host, self.ledger.step_ns.append
        result_ns, launch_ns, gap_ns = host.result_ns, host.launch_ns, host.gap_ns
        num_rows, num_held = second.work.num_rows, self.scheduler.residents.num_kv_tokens
        learn, step_id, num_kv_of = (
            self.scheduler.policies.learn,
            first.plan.step_id,
            num_kv_tokens(self.scheduler),
        )
        base_ns, kv_ns = self._cost.decode_ns(num_rows)
        num_kv, held_ns, token_ns, busy_ns, count = second.work.num_kv, self._held_ns, 0, 0, 0
        sooner, later = (first.begin_ns, first.end_ns), (second.begin_ns, second.end_ns)
        while count < limit and (now_ns := sooner[1] + result_ns) <= until_ns:
            append(now_ns)
            learn(step_id + count, 0, num_rows, num_kv_of(count), sooner[1] - sooner[0])
            token_ns += num_held * (now_ns - held_ns)
            held_ns = now_ns
            num_held += num_rows
            num_kv += num_rows
            cost_ns = int(base_ns + kv_ns * num_kv)
            busy_ns += cost_ns
            begin_ns = max(now_ns + launch_ns, later[1] + gap_ns)
            sooner, later = later, (begin_ns, begin_ns + cost_ns)
            count += 1
        self.num_steps += count
        self.busy_ns += busy_ns
        self._device_end_ns = later[1]
        self.ledger.run(num_rows, self.scheduler.num_waiting, held_ns - self._held_ns)
        self._held_ns = held_ns
        self.ledger.held(token_ns, num_held)
        return (sooner, later), count


def _longer(work: StepWork, num_kv: int) -> StepWork:
    """The same rows with contexts that are longer by so many tokens in all."""
    num_tokens, num_rows, num_sampled, kv, attended = work
    return StepWork(num_tokens, num_rows, num_sampled, kv + num_kv, attended + num_kv)
