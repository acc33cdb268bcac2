"""The schedule stage, replaced at any time: its steps are those of one that is not, and every block is right.

With the same options the plans and rows are the very same. With others the device still finds in each block
what it must (CheckingRunner), and everybody gets the tokens that he would get alone.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.core.gate import Gate
from pipeline.messages import (
    NO_TOKEN,
    Cancel,
    DeviceReady,
    FinishReason,
    Pause,
    Rejected,
    Reopen,
    Resume,
    SamplingParams,
    StepHandle,
    StepPlan,
    Terms,
    TokenBatch,
    TokenizedRequest,
)
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import StageContext
from pipeline.runtime.testing import CheckingRunner, ManualClock
from pipeline.stages.schedule import Schedule, ScheduleOptions
from pipeline.telemetry import Telemetry
from tests.moving import Place
from tests.property.asked import BLOCK
from tests.property.results import batch_of, tokens_alone

MS = 1_000_000
CARD = byte_card()


class Floor:
    """A scheduler between open inboxes, and a device that does its steps when told."""

    def __init__(self, device: DeviceReady, options: ScheduleOptions) -> None:
        self.clock = ManualClock(MS)
        self.inbox: Inbox[Any] = Inbox(64)
        self.outboxes: dict[type, Inbox[Any]] = {
            kind: Inbox(1 << 12) for kind in (StepPlan, TokenBatch, Rejected, Reopen)
        }
        resources: dict[type, object] = {ModelCard: CARD, Telemetry: Telemetry(), Gate: Gate()}
        ctx = StageContext("schedule", self.inbox, self.outboxes, resources, clock=self.clock)
        self.place = Place(Schedule(ctx, options))
        self.prompts: dict[int, list[int]] = {}
        self.runner = CheckingRunner(device, self.prompts)
        self.plans: list[StepPlan] = []
        self.rows: list[TokenBatch] = []
        self.flying: deque[StepHandle] = deque()
        self.requests: list[TokenizedRequest] = []
        self.refused: set[int] = set()
        """Those that can never fit."""

    @property
    def stage(self) -> Any:
        return self.place.stage

    async def handle(self, *messages: Any) -> None:
        """With what it has posted to itself; then take what it has sent."""
        self.clock.advance(MS)
        posted = await self.inbox.recv_control() if self.inbox._control else []
        await self.stage.handle([*posted, *messages])
        for plan in await _taken(self.outboxes[StepPlan]):
            self.plans.append(plan)
            self.flying.append(self.runner.launch(plan))
        self.rows += await _taken(self.outboxes[TokenBatch])
        self.refused |= {rejected.request_id for rejected in await _taken(self.outboxes[Rejected])}

    async def arrive(self, prompt: int, max_tokens: int, terms: Terms) -> None:
        request_id = len(self.requests)
        sampling = SamplingParams(max_tokens=max_tokens, seed=request_id, ignore_eos=True)
        now_ns = self.clock()
        request = TokenizedRequest(
            request_id, list(range(prompt)), sampling, now_ns, now_ns, (0, 0, 0), terms
        )
        self.prompts[request_id] = list(range(prompt))
        self.requests.append(request)
        await self.handle(request)

    async def step(self) -> None:
        """The oldest step on the device ends."""
        if self.flying:
            handle, now_ns = self.flying.popleft(), self.clock()
            await self.handle(batch_of(handle, (now_ns, now_ns, now_ns, now_ns)))

    async def finish(self) -> None:
        for request in self.requests:
            await self.handle(Resume(request.request_id))
        for _ in range(2000):
            if self.stage._scheduler.is_idle:
                break
            await self.step()
            await self.handle()
        scheduler = self.stage._scheduler
        assert scheduler.is_idle, "it never comes to rest"
        assert scheduler.pool.num_free == scheduler.pool.num_blocks
        await self.place.stage.stop()

    def told(self) -> dict[int, tuple[list[int], int]]:
        """Of each request that ended: its tokens, and how."""
        got: dict[int, list[int]] = {request.request_id: [] for request in self.requests}
        ended: dict[int, tuple[list[int], int]] = {}
        for batch in self.rows:
            rows = zip(batch.request_ids, batch.token_ids, batch.finish_reasons, strict=True)
            for request_id, token_id, finish in rows:
                assert request_id not in ended, "a row after the terminal row"
                if token_id != NO_TOKEN:
                    got[request_id].append(token_id)
                if finish:
                    ended[request_id] = (got[request_id], finish)
        return ended


async def _taken(outbox: Inbox[Any]) -> list[Any]:
    return await outbox.recv_many() if outbox.stats().depth or outbox._control else []


devices = st.builds(
    DeviceReady,
    st.integers(4, 10),
    st.just(BLOCK),
    st.integers(1, 4),
    st.integers(2, 16),
    num_host_blocks=st.sampled_from([0, 0, 4]),
    block_copy_ns=st.just(1),
)
terms = st.builds(Terms, tenant=st.sampled_from(["", "gold"]), priority=st.integers(0, 2))
events = st.one_of(
    st.tuples(st.just("arrive"), st.tuples(st.integers(1, 12), st.integers(1, 8), terms)),
    st.tuples(st.just("step"), st.none()),
    st.tuples(st.just("step"), st.none()),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("pause"), st.integers(0, 5)),
    st.tuples(st.just("resume"), st.integers(0, 5)),
)
Event = tuple[str, Any]


async def happen(floor: Floor, event: Event) -> None:
    kind, value = event
    if kind == "arrive":
        await floor.arrive(*value)
    elif kind == "step":
        await floor.step()
    else:
        message = {
            "cancel": Cancel(value, FinishReason.CANCELLED),
            "pause": Pause(value),
            "resume": Resume(value),
        }[kind]
        if value < len(floor.requests):
            await floor.handle(message)


async def served(
    device: DeviceReady,
    events: Sequence[Event],
    options: ScheduleOptions,
    others: Sequence[ScheduleOptions | None],
) -> Floor:
    """`others`: by whose options one takes over before each event; None: nobody does."""
    floor = Floor(device, options)
    await floor.handle(device)
    for index, event in enumerate(events):
        other = others[index % len(others)] if others else None
        if other is not None:
            await floor.place.move(options=other)
        await happen(floor, event)
    await floor.finish()
    return floor


@settings(max_examples=60, deadline=None)
@given(
    devices,
    st.lists(events, min_size=4, max_size=24),
    st.sampled_from(["fcfs", "priority", "sjf", "fair", "deadline"]),
    st.lists(st.booleans(), max_size=12),
)
def test_the_same_steps(device: DeviceReady, events: list[Event], policy: str, moves: list[bool]) -> None:
    options = ScheduleOptions(policy=policy, max_wait_ms=None)
    undisturbed = asyncio.run(served(device, events, options, ()))
    moved = asyncio.run(served(device, events, options, [options if each else None for each in moves]))
    assert moved.plans == undisturbed.plans
    assert moved.rows == undisturbed.rows
    assert moved.refused == undisturbed.refused


options = st.builds(
    ScheduleOptions,
    policy=st.sampled_from(["fcfs", "priority", "sjf", "fair", "deadline"]),
    fair_weights=st.sampled_from([None, {"gold": 3.0}]),
    itl_stretch=st.sampled_from([0.0, 1.5, 4.0]),
    itl_target_ms=st.sampled_from([None, 1.0]),
    max_bypasses=st.integers(0, 2),
    max_preemptions=st.integers(0, 3),
    credits=st.integers(1, 3),
    max_waiting=st.sampled_from([1, 100]),
    max_wait_ms=st.none(),
    kv_eviction=st.sampled_from(["none", "none", "sink_window"]),
    kv_budget=st.just(2 * BLOCK),
    kv_sinks=st.just(0),
)


@settings(max_examples=60, deadline=None)
@given(
    devices,
    st.lists(events, min_size=4, max_size=24),
    options,
    st.lists(st.one_of(st.none(), options), max_size=8),
)
def test_other_options(
    device: DeviceReady,
    events: list[Event],
    first: ScheduleOptions,
    others: list[ScheduleOptions | None],
) -> None:
    floor = asyncio.run(served(device, events, first, others))
    ended = floor.told()
    for request in floor.requests:
        expected = tokens_alone(request.sampling, len(floor.prompts[request.request_id]))
        if request.request_id in floor.refused:
            assert request.request_id not in ended
            continue
        got, finish = ended[request.request_id]
        assert got == expected[: len(got)]
        assert finish == FinishReason.CANCELLED or got == expected
