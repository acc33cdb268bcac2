"""Replica: one server on virtual time. The scheduler is the real one; this plays its shell and its device.

As stages.schedule does: a result in, the next plans out as far as credits go, then tokens out. The device
runs one step after the other; a step that is planned while another runs follows it after `gap_ns`.
"""

from collections import deque
from itertools import compress
from typing import NamedTuple

from pipeline.core.scheduling import Scheduler
from pipeline.messages import Rejected, SampledBatch, SamplingParams, StepPlan, TokenizedRequest
from pipeline.simulate.fast_forward import num_alike, skip
from pipeline.simulate.host import HostCosts
from pipeline.simulate.ledger import Ledger, Track
from pipeline.simulate.work import Cost, StepWork, work_of
from pipeline.simulate.workload import Arrival
from pipeline.topology import CREDITS

TOKEN = 1
"""What every token is; none of them ends an answer."""
WORTHWHILE = 3
"""Steps alike from which on skipping them costs less than planning them."""


class InFlight(NamedTuple):
    """A step between its plan and its result."""

    plan: StepPlan
    work: StepWork
    begin_ns: int
    end_ns: int


class Replica:
    """Time moves only through `advance` and `add`, never back.

    Args:
        can_skip: whether steps that are alike may be skipped (fast_forward); results do not differ.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: Cost,
        host: HostCosts,
        *,
        can_skip: bool = True,
        credits: int = CREDITS,
    ) -> None:
        self.scheduler = scheduler
        self.ledger = Ledger()
        self.num_steps = 0
        self.busy_ns = 0
        """Of the device."""
        self._cost = cost
        self._host = host
        self._can_skip = can_skip
        self._credits = credits
        self._in_flight: deque[InFlight] = deque()
        self._device_end_ns = 0
        self._held_ns = 0
        """Up to when the tokens held are accounted."""

    def add(self, index: int, arrival: Arrival, now_ns: int) -> Rejected | None:
        """A request reaches the scheduler's queue at `now_ns`, up to which `advance` has come."""
        track = Track(index, arrival.at_ns, arrival.num_input, arrival.terms.tenant)
        request_id = self.ledger.add(track)
        rejected = self.scheduler.add(
            TokenizedRequest(
                request_id,
                [TOKEN] * arrival.num_input,
                SamplingParams(max_tokens=arrival.num_output, ignore_eos=True),
                arrival.at_ns,
                now_ns,
                (now_ns - arrival.at_ns, 0, 0),
                arrival.terms,
            )
        )
        if rejected is not None:
            self.ledger.refused()
        else:
            self._plan(now_ns)
        return rejected

    def advance(self, until_ns: int) -> None:
        """Take in all results due at or before `until_ns`, and plan on."""
        in_flight, result_ns = self._in_flight, self._host.result_ns
        while in_flight and in_flight[0].end_ns + result_ns <= until_ns:
            self._take(in_flight.popleft())
            if self._can_skip and len(in_flight) == 2 == self._credits:
                self._skip(until_ns)

    def finish(self) -> None:
        """Run until nothing is left to do."""
        self.advance(1 << 62)
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
        self.scheduler.apply(
            SampledBatch(plan.step_id, request_ids, epochs, [TOKEN] * len(request_ids), times_ns), now_ns
        )
        self._plan(now_ns)
        batch = self.scheduler.take_tokens(now_ns)
        if batch is not None:
            self.ledger.tokens(batch, now_ns)

    def _plan(self, now_ns: int) -> None:
        self._hold(now_ns)
        scheduler = self.scheduler
        while scheduler.num_in_flight < self._credits:
            plan = scheduler.plan(now_ns)
            if plan is None:
                return
            if plan.admitted:
                self.ledger.admitted(plan.request_ids[-len(plan.admitted) :], now_ns)
            work = work_of(plan)
            self._in_flight.append(InFlight(plan, work, *self._run(work, now_ns)))

    def _run(self, work: StepWork, now_ns: int) -> tuple[int, int]:
        """When the device begins and ends a step planned now."""
        begin_ns = max(now_ns + self._host.launch_ns, self._device_end_ns + self._host.gap_ns)
        cost_ns = self._cost.step_ns(work)
        self.num_steps += 1
        self.busy_ns += cost_ns
        self._device_end_ns = begin_ns + cost_ns
        return begin_ns, self._device_end_ns

    def _hold(self, now_ns: int) -> None:
        self.ledger.hold(self.scheduler.num_kv_tokens, now_ns - self._held_ns)
        self._held_ns = now_ns

    # Steps alike ----------------------------------------------------------------------------

    def _skip(self, until_ns: int) -> None:
        """Run the steps alike that lie ahead without planning them, up to `until_ns`.

        They stand between those applied and the two in flight, which move behind them.
        """
        first, second = self._in_flight
        if self.ledger.going != first.plan.request_ids:
            return
        limit = num_alike(self.scheduler, first.plan, second.plan)
        if limit < WORTHWHILE:
            return
        work, num_rows, result_ns = second.work, second.work.num_rows, self._host.result_ns
        begin_ns, end_ns, num_kv = (first.begin_ns, second.begin_ns), (first.end_ns, second.end_ns), 0
        held = self.scheduler.num_kv_tokens
        count = 0
        while count < limit and end_ns[0] + result_ns <= until_ns:
            now_ns = end_ns[0] + result_ns
            self.ledger.hold(held, now_ns - self._held_ns)
            self._held_ns = now_ns
            self.ledger.same_again(now_ns)
            num_kv += num_rows
            held += num_rows
            ahead = work._replace(num_kv=work.num_kv + num_kv, num_attended=work.num_attended + num_kv)
            begin, end = self._run(ahead, now_ns)
            begin_ns, end_ns = (begin_ns[1], begin), (end_ns[1], end)
            count += 1
        skip(self.scheduler, count)
        for step, begin, end in zip((first, second), begin_ns, end_ns, strict=True):
            self._in_flight.append(
                InFlight(
                    step.plan,
                    step.work._replace(
                        num_kv=step.work.num_kv + num_kv, num_attended=step.work.num_attended + num_kv
                    ),
                    begin,
                    end,
                )
            )
            self._in_flight.popleft()
