"""The scheduler, under every policy, against a device that checks every block it is told to read."""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from pipeline.core.allocation import AllocationName
from pipeline.core.policies import Policies, make_policies
from pipeline.core.prefix_cache import NoSharing, SharedPrefixes
from pipeline.core.roles import SEPARATIONS, Role
from pipeline.core.scheduling import Scheduler
from pipeline.messages import (
    NO_TOKEN,
    DeviceReady,
    FinishReason,
    Pooling,
    SamplingParams,
    StepHandle,
    StepPlan,
    Terms,
    TokenizedRequest,
)
from pipeline.runtime.testing import CheckingRunner, fake_embedding
from tests.property.asked import BLOCK, CREDITS, DROPPING, TERMS, options
from tests.property.places import assert_places_are_conserved, assert_places_are_free
from tests.property.results import batch_of, tokens_alone


class SchedulerMachine(RuleBasedStateMachine):
    """Requests arrive, are cancelled, paused, preempted and shed in any order; steps are applied late."""

    policy: str
    roles: tuple[Role, ...] = (Role.BOTH,)
    allocation: AllocationName = "paged"
    max_pinned_blocks = 0

    @initialize(
        data=st.data(),
        num_blocks=st.integers(3, 12),
        max_num_seqs=st.integers(1, 5),
        max_num_batched_tokens=st.integers(1, 24),
        num_host_blocks=st.sampled_from([0, 2, 5, 30]),
        block_copy_ns=st.sampled_from([1, 1, 10**9]),
    )
    def begin(
        self,
        data: st.DataObject,
        num_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        num_host_blocks: int,
        block_copy_ns: int,
    ) -> None:
        device = DeviceReady(
            num_blocks,
            BLOCK,
            max_num_seqs,
            max_num_batched_tokens,
            num_host_blocks=num_host_blocks if len(self.roles) == 1 else 0,
            block_copy_ns=block_copy_ns,
        )
        device = self.with_tiers(data, device)
        policies = make_policies(data.draw(options(self.policy)), device)
        prefixes = self.new_prefixes(data, device, policies)
        parts = (self.roles, prefixes, self.allocation, self.max_pinned_blocks)
        self.scheduler = Scheduler(device, (40,), policies, *parts)
        self.asked: dict[int, list[int]] = {}
        runner = CheckingRunner(device, self.asked)
        self.runners = [runner, *(runner.fork() for _ in self.roles[1:])]
        self.touched: dict[int, list[int]] = {}
        """The blocks that a step reads and writes, by its id."""
        self.planned: list[deque[StepPlan]] = [deque() for _ in self.roles]
        self.flying: list[deque[StepHandle]] = [deque() for _ in self.roles]
        self.requests: dict[int, TokenizedRequest] = {}
        self.got: dict[int, list[int]] = {}
        self.endings: dict[int, int] = {}
        self.embeddings: dict[int, bytes] = {}
        self.cancelled: set[int] = set()
        self.shed: set[int] = set()
        self.stopped: set[int] = set()
        self.held_back: list[TokenizedRequest] = []
        self.now = 1
        self.next_id = 0

    def new_prefixes(self, data: st.DataObject, device: DeviceReady, policies: Policies) -> SharedPrefixes:
        return NoSharing()

    def tick(self) -> int:
        self.now += 7
        return self.now

    @rule(
        prompt=st.integers(1, 20),
        max_tokens=st.integers(1, 20),
        seed=st.integers(0, 9),
        eos=st.booleans(),
        terms=TERMS,
    )
    def arrive(self, prompt: int, max_tokens: int, seed: int, eos: bool, terms: Terms) -> None:
        self.accept(self.new_request(list(range(prompt)), max_tokens, seed, eos, terms))

    @rule(prompt=st.integers(5, 70), max_tokens=st.integers(1, 30), seed=st.integers(0, 9), terms=DROPPING)
    def arrive_long(self, prompt: int, max_tokens: int, seed: int, terms: Terms) -> None:
        """Longer than the pool, if need be: it drops blocks on its way."""
        self.accept(self.new_request(list(range(prompt)), max_tokens, seed, True, terms))

    @rule(prompt=st.integers(1, 40), pooling=st.sampled_from(["last", "mean"]), terms=TERMS)
    def arrive_for_an_embedding(self, prompt: int, pooling: Pooling, terms: Terms) -> None:
        terms = replace(terms, kv_eviction="none", kv_budget=None, kv_sinks=None)
        request = replace(self.new_request(list(range(prompt)), 1, 0, True, terms), pooling=pooling)
        self.requests[request.request_id] = request
        self.accept(request)

    @rule(prompt=st.integers(1, 8), max_tokens=st.integers(1, 8), terms=TERMS)
    def arrive_later(self, prompt: int, max_tokens: int, terms: Terms) -> None:
        """Overtaken in the tokenizer pool by the requests after it."""
        self.held_back.append(self.new_request(list(range(prompt)), max_tokens, 0, True, terms))

    @precondition(lambda self: self.held_back)
    @rule()
    def overtaken(self) -> None:
        self.accept(self.held_back.pop(0))

    @rule(data=st.data(), stop=st.booleans())
    def cancel(self, data: st.DataObject, stop: bool) -> None:
        if not self.requests:
            return
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        if stop and self.got.get(request_id) and request_id not in self.endings:
            self.scheduler.cancel(request_id, FinishReason.STOP)
            self.scheduler.cancel(request_id, FinishReason.STOP)
            self.stopped.add(request_id)
        elif not stop:
            self.cancelled.add(request_id)
            self.scheduler.cancel(request_id, FinishReason.CANCELLED)
            self.scheduler.cancel(request_id, FinishReason.CANCELLED)

    @rule()
    def cancel_a_preempted_one(self) -> None:
        for request_id, sequence in list(self.scheduler._live.items()):
            if sequence.slot < 0 and sequence.epoch:
                self.cancelled.add(request_id)
                self.scheduler.cancel(request_id, FinishReason.CANCELLED)
                return

    @rule(data=st.data(), is_paused=st.booleans())
    def pause(self, data: st.DataObject, is_paused: bool) -> None:
        if self.requests:
            request_id = data.draw(st.sampled_from(sorted(self.requests)))
            self.scheduler.pause(request_id, is_paused=is_paused)

    @rule(moves=st.lists(st.tuples(st.sampled_from("pppraa"), st.booleans()), min_size=6, max_size=40))
    def work(self, moves: list[tuple[str, bool]]) -> None:
        """Plans, runs and applies, of either worker: steps overlap in any way that credits allow."""
        does = {"p": self.plan, "r": self.run, "a": self.apply}
        for move, is_last in moves:
            does[move](len(self.roles) - 1 if is_last else 0)
            self.workers_at_the_same_time_touch_other_blocks()

    def plan(self, worker: int) -> None:
        if self.scheduler.num_in_flight_of(worker) == CREDITS:
            return
        for rejected in self.scheduler.shed(self.tick()):
            assert rejected.status == 503 and rejected.code in ("wait_too_long", "deadline_missed")
            assert rejected.request_id not in self.got | self.endings, "only who has no row is shed"
            self.shed.add(rejected.request_id)
        plan = self.scheduler.plan(self.tick(), worker)
        if plan is not None:
            assert plan.worker == worker
            self.look_at(plan)
            running = self.scheduler.residents.running
            self.touched[plan.step_id] = [
                block for request_id in plan.request_ids for block in running[request_id].blocks
            ]
            self.planned[worker].append(plan)

    def look_at(self, plan: StepPlan) -> None:
        """For machines that have more to check."""

    def run(self, worker: int) -> None:
        """The worker gets to its next step: any time between its plan and its result."""
        if self.planned[worker]:
            plan = self.planned[worker].popleft()
            self.flying[worker].append(self.runners[worker].launch(plan))

    def apply(self, worker: int) -> None:
        if not self.flying[worker]:
            self.run(worker)
        if not self.flying[worker]:
            return
        handle = self.flying[worker].popleft()
        times_ns = (self.tick(), self.tick(), self.tick(), self.tick())
        self.scheduler.apply(batch_of(handle, times_ns), self.tick())

    @rule()
    def tell(self) -> None:
        batch = self.scheduler.take_tokens(self.tick())
        if batch is None:
            return
        for request_id, token_id, finish in zip(
            batch.request_ids, batch.token_ids, batch.finish_reasons, strict=True
        ):
            assert request_id not in self.endings, "a row after the terminal row"
            assert request_id not in self.shed, "a row after the rejection"
            if token_id != NO_TOKEN:
                self.got.setdefault(request_id, []).append(token_id)
            if finish:
                self.endings[request_id] = finish
        self.embeddings |= batch.embeddings
        for times in batch.times:
            segments = list(times.base_ns)
            for index, value in enumerate(batch.elapsed_ns[6 * times.worker : 6 * times.worker + 6]):
                segments[3 + index] += value
            assert min(segments) >= 0
            assert sum(segments) == batch.sent_ns - self.requests[times.request_id].arrived_ns

    @invariant()
    def blocks_are_conserved(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        held = [block for sequence in self.scheduler.residents.running.values() for block in sequence.blocks]
        num_held = len(held) + self.scheduler.flights.num_resting
        assert len(held) == len(set(held)) and num_held == self.scheduler.pool.num_owned
        running = self.scheduler.residents.running.values()
        assert len(running) <= self.scheduler.device.max_num_seqs
        assert self.scheduler.num_kv_tokens == sum(each.num_entries for each in running)

    @invariant()
    def nobody_holds_more_than_it_says(self) -> None:
        running = self.scheduler.residents.running.values() if hasattr(self, "scheduler") else ()
        for sequence in running:
            num_held, retention = len(sequence.blocks), sequence.retention
            assert num_held <= min(retention.max_blocks, self.scheduler.device.num_blocks)
            assert retention.drops or not sequence.num_dropped
            assert sequence.num_entries <= num_held * BLOCK
            if sequence.num_dropped:
                budget = -(-(sequence.terms.kv_budget or 2 * BLOCK) // BLOCK) * BLOCK
                assert sequence.num_entries > budget - BLOCK, "it dropped what it could have kept"

    @invariant()
    def workers_at_the_same_time_touch_other_blocks(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        touched = [
            {block for plan in self.in_flight(worker) for block in self.touched[plan.step_id]}
            for worker in range(len(self.roles))
        ]
        assert len(set().union(*touched)) == sum(map(len, touched))

    def in_flight(self, worker: int) -> list[StepPlan]:
        return [*(handle.plan for handle in self.flying[worker]), *self.planned[worker]]

    @invariant()
    def host_places_are_conserved(self) -> None:
        if hasattr(self, "scheduler"):
            assert_places_are_conserved(self.scheduler, self.places_on_the_move())

    def with_tiers(self, data: st.DataObject, device: DeviceReady) -> DeviceReady:
        return device

    def places_on_the_move(self) -> list[int]:
        return []

    @invariant()
    def who_waits_is_in_the_order(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        waiting = {k for k, each in self.scheduler._live.items() if each.slot < 0 and not each.is_held_out}
        order = self.scheduler.policies.order
        candidates = [each.request_id for each in order.candidates(self.now)]
        assert sorted(candidates) == sorted(waiting)
        assert len(order) == len(waiting)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        while self.held_back:
            self.overtaken()
        for request_id in self.requests:
            self.scheduler.pause(request_id, is_paused=False)
        for _ in range(5000):
            if self.scheduler.is_idle:
                break
            for worker in range(len(self.roles)):
                self.plan(worker)
                self.run(worker)
                self.apply(worker)
            self.tell()
        assert self.scheduler.is_idle, "it never comes to rest"
        assert self.scheduler.pool.num_free == self.scheduler.pool.num_blocks
        assert_places_are_free(self.scheduler, self.places_on_the_move())
        for request_id, request in self.requests.items():
            self.check_answer(request_id, request)

    def check_answer(self, request_id: int, request: TokenizedRequest) -> None:
        got = self.got.get(request_id, [])
        if request_id in self.shed:
            assert not got and request_id not in self.endings
            return
        num_tokens = len(self.asked[request_id])
        expected = [] if request.pooling else tokens_alone(request.sampling, num_tokens)
        assert got == expected[: len(got)], "tokens differ from those of the request alone"
        if request_id in self.stopped and request_id not in self.endings:
            return
        ending = self.endings[request_id]
        if ending == FinishReason.CANCELLED:
            assert request_id in self.cancelled
            return
        assert got == expected
        if request.pooling:
            assert self.embeddings[request_id] == fake_embedding(num_tokens)
            assert ending == FinishReason.STOP
            return
        is_eos = expected[-1] == 40 and not request.sampling.ignore_eos
        assert ending == (FinishReason.STOP if is_eos else FinishReason.LENGTH)

    def new_request(
        self, token_ids: list[int], max_tokens: int, seed: int, eos: bool, terms: Terms
    ) -> TokenizedRequest:
        request_id, self.next_id = self.next_id, self.next_id + 1
        sampling = SamplingParams(max_tokens=max_tokens, seed=seed, ignore_eos=not eos)
        arrived = self.tick()
        sent = arrived + 6
        self.asked[request_id] = list(token_ids)
        request = TokenizedRequest(request_id, token_ids, sampling, arrived, sent, (1, 2, 3), terms)
        self.now = sent
        self.requests[request_id] = request
        return request

    def accept(self, request: TokenizedRequest) -> None:
        rejected = self.scheduler.add(request)
        if rejected is not None:
            device, terms = self.scheduler.device, request.terms
            needs = len(request.token_ids) + (request.sampling.max_tokens or 0) - 1
            capacity = device.num_blocks * device.block_size
            if rejected.code == "kv_capacity_exceeded":
                assert needs > capacity and str(needs) in rejected.message
            elif rejected.code == "kv_eviction_off":
                assert self.allocation == "contiguous"
            else:
                sinks, budget = -(-(terms.kv_sinks or 0) // BLOCK), -(-(terms.kv_budget or 0) // BLOCK)
                assert rejected.param == "kv_budget" and terms.kv_eviction
                assert not sinks + 2 <= budget < device.num_blocks
            del self.requests[request.request_id]


class Fcfs(SchedulerMachine):
    policy = "fcfs"


class Priority(SchedulerMachine):
    policy = "priority"


class Sjf(SchedulerMachine):
    policy = "sjf"


class Fair(SchedulerMachine):
    policy = "fair"


class Deadline(SchedulerMachine):
    policy = "deadline"


def split(machine: type[SchedulerMachine]) -> type[SchedulerMachine]:
    """The same with a worker for prefill and one for decode, whose steps run in any order."""
    return type(f"Split{machine.__name__}", (machine,), {"roles": SEPARATIONS["split"]})


MIXED = [Fcfs, Priority, Sjf, Fair, Deadline]
MACHINES = [*MIXED, *map(split, MIXED)]


@pytest.mark.parametrize("machine", [*MIXED, split(Priority)])
def test_scheduler(machine: type[SchedulerMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=140, stateful_step_count=50, deadline=None)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("machine", MACHINES)
def test_scheduler_at_length(machine: type[SchedulerMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=2000, stateful_step_count=100, deadline=None)
    )
