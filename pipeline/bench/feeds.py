"""Feeds: how each stage is fed, found by the message type that its data link carries.

Requests and steps come as fast as the stage takes them. The two stages of the step cycle that wait for an
answer get one: `Device` answers the plans of schedule, and `Plans` makes plans for execute.
"""

import asyncio
from collections.abc import Callable
from itertools import compress, islice
from time import perf_counter_ns

from pipeline.bench.samples import (
    Load,
    Row,
    generate_request,
    place,
    step_handle,
    step_plan,
    steps,
    text_batch,
    token_batch,
    tokenized_request,
)
from pipeline.bench.stand import Feed, Stand
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.scheduling import Scheduler
from pipeline.errors import StagelineError
from pipeline.messages import (
    Cancel,
    DeviceReady,
    FinishReason,
    GenerateRequest,
    Open,
    Rejected,
    SampledBatch,
    StepHandle,
    StepPlan,
    TextBatch,
    TokenBatch,
    TokenCall,
    TokenizedRequest,
)
from pipeline.messages.stand_ins import TAKES_ALL
from pipeline.runtime.testing import fake_drops
from pipeline.topology import CREDITS, WHOLE, Graph, Lane

MakeRequest = Callable[[Load, int, int], object]
MakeStep = Callable[[Load, int, list[Row], int], object]


class Requests(Feed):
    """A message a request, as many as the inbox takes; each must be answered."""

    def __init__(self, load: Load, make: MakeRequest) -> None:
        super().__init__()
        self._make = make
        self._load = load
        self._num_answered = 0
        self._are_answered = asyncio.Event()

    async def send(self, stand: Stand, num_messages: int) -> None:
        num_left = self._load.num_sequences - self.num_rows
        if not num_left:
            return
        self._are_answered.clear()
        for _ in range(min(num_messages, num_left)):
            self.num_rows += 1
            await stand.inbox.send(self._make(self._load, self.num_rows, perf_counter_ns()))
        await self._are_answered.wait()

    def gave(self, stand: Stand, message: object) -> None:
        if isinstance(message, Rejected):
            raise _refused(message)
        self._num_answered += 1
        if self._num_answered == self.num_rows:
            self._are_answered.set()


class Steps(Feed):
    """One message a step, the next when it is taken. Streams are opened for a stage that writes them."""

    def __init__(self, load: Load, make: MakeStep, *, opens: bool = False) -> None:
        super().__init__()
        self._load = load
        self._make = make
        self._opens = opens
        self._steps = enumerate(steps(load), 1)

    async def send(self, stand: Stand, num_messages: int) -> None:
        for step_id, rows in islice(self._steps, num_messages):
            self.num_rows += len(rows)
            if self._opens:
                for row in rows:
                    if row.position == 0:
                        stand.inbox.post(Open(row.request_id, TAKES_ALL, perf_counter_ns()))
            await stand.inbox.send(self._make(self._load, step_id, rows, perf_counter_ns()))
            while stand.inbox.stats().depth:  # noqa: ASYNC110 - a pass of the loop, not a time
                await asyncio.sleep(0)

    def gave(self, stand: Stand, message: object) -> None:
        pass


class Device(Feed):
    """TokenizedRequests, and a device that costs nothing. `send` counts plans.

    As on a device, steps end one after the other: one answer in a pass of the loop.
    """

    def __init__(self, load: Load) -> None:
        super().__init__()
        self._load = load
        self._next_id = self._num_owed = 0
        self._live: set[int] = set()
        self._num_allowed = 0
        self._held: list[StepPlan] = []
        """Plans not answered yet."""
        self._is_answering = False
        self._is_done = asyncio.Event()
        self._has_ended = False

    async def send(self, stand: Stand, num_messages: int) -> None:
        if not self._next_id:
            stand.inbox.post(roomy(self._load))
            self._num_owed = self._load.num_rows
        elif self._is_over:
            return
        self._is_done.clear()
        self._num_allowed = num_messages
        self._join(stand)
        self._answer(stand)
        await self._is_done.wait()

    def gave(self, stand: Stand, message: object) -> None:
        if isinstance(message, StepPlan):
            self._held.append(message)
            self._answer(stand)
        elif isinstance(message, TokenBatch):
            ended = list(compress(message.request_ids, message.finish_reasons))
            self._live.difference_update(ended)
            self._num_owed += len(ended)
            if self._is_over:
                self._is_done.set()
        elif isinstance(message, Rejected):
            raise _refused(message)
        if not self._has_ended:
            self._join(stand)

    def end(self, stand: Stand) -> None:
        self._has_ended = True
        self._num_allowed = 1 << 62
        for request_id in self._live:
            stand.inbox.post(Cancel(request_id, FinishReason.CANCELLED))
        self._answer(stand)

    @property
    def _is_over(self) -> bool:
        """All sequences that there are have ended."""
        return self._next_id == self._load.num_sequences and not self._live

    def _join(self, stand: Stand) -> None:
        """Begin as many sequences as have ended, while there are, as far as the inbox has room."""
        while (
            self._num_owed
            and self._next_id < self._load.num_sequences
            and stand.inbox.offer(tokenized_request(self._load, self._next_id, perf_counter_ns()))
        ):
            self._live.add(self._next_id)
            self._next_id += 1
            self._num_owed -= 1

    def _answer(self, stand: Stand) -> None:
        if not self._is_answering:
            self._is_answering = True
            asyncio.get_running_loop().call_soon(self._answer_one, stand)

    def _answer_one(self, stand: Stand) -> None:
        self._is_answering = False
        if not self._num_allowed:
            self._is_done.set()
        elif self._held:
            plan = self._held.pop(0)
            self.num_rows += len(plan.slots)
            self._num_allowed -= 1
            stand.inbox.post(sampled_batch(plan, sampled_tokens(self._load, plan), perf_counter_ns()))
            self._answer(stand)


class Plans(Feed):
    """StepPlans of a real scheduler for the device that the stage opens. Its time is the device's."""

    def __init__(self, load: Load) -> None:
        super().__init__()
        self._load = load
        self._scheduler: Scheduler | None = None
        self._next_id = 0
        self._num_allowed = self._num_waited = 0
        self._is_done = asyncio.Event()
        self._services_us: list[tuple[int, float]] = []

    async def send(self, stand: Stand, num_messages: int) -> None:
        if self._is_over:
            return
        self._is_done.clear()
        self._num_allowed = self._num_waited = num_messages
        if self._scheduler is not None:
            self._plan(stand)
        await self._is_done.wait()

    def gave(self, stand: Stand, message: object) -> None:
        if isinstance(message, DeviceReady):
            self._open(message)
        else:
            self._apply(message)  # type: ignore[arg-type]  # a Protocol without a cheap isinstance
        self._plan(stand)

    def services_us(self, stand: Stand, since_ns: int) -> list[float]:
        return [service_us for begin_ns, service_us in self._services_us if begin_ns >= since_ns]

    def _open(self, ready: DeviceReady) -> None:
        if ready.max_num_seqs < self._load.num_rows:
            raise StagelineError(
                f"{self._load.num_rows} rows are over device.max_num_seqs, which is {ready.max_num_seqs}"
            )
        self._scheduler = Scheduler(ready, (), make_policies(SchedulingOptions(), ready))
        for _ in range(self._load.num_rows):
            self._join(self._scheduler)

    def _apply(self, step: StepHandle) -> None:
        scheduler = self._scheduler
        assert scheduler is not None, "a device tells what it holds before its first step"
        token_ids = step.token_ids_sync()
        self._services_us.append((step.begin_ns, (step.end_ns - step.begin_ns) / 1e3))
        self.num_rows += len(step.plan.slots)
        scheduler.apply(sampled_batch(step.plan, token_ids, step.end_ns), perf_counter_ns())
        batch = scheduler.take_tokens(perf_counter_ns())
        for _ in filter(None, batch.finish_reasons if batch else ()):
            self._join(scheduler)
        self._num_waited -= 1
        if not self._num_waited or self._is_over:
            self._is_done.set()

    @property
    def _is_over(self) -> bool:
        """All sequences that there are have ended."""
        scheduler, num_sequences = self._scheduler, self._load.num_sequences
        return scheduler is not None and self._next_id == num_sequences and scheduler.is_idle

    def _join(self, scheduler: Scheduler) -> None:
        if self._next_id == self._load.num_sequences:
            return
        refused = scheduler.add(tokenized_request(self._load, self._next_id, perf_counter_ns()))
        if refused is not None:
            raise _refused(refused)
        self._next_id += 1

    def _plan(self, stand: Stand) -> None:
        scheduler = self._scheduler
        while scheduler and self._num_allowed and scheduler.num_in_flight < CREDITS and stand.inbox.room():
            plan = scheduler.plan(perf_counter_ns())
            if plan is None:
                return
            self._num_allowed -= 1
            stand.inbox.offer(plan)


NOT_FED = (TokenCall,)
"""Questions beside the flow of requests."""
FEEDS: dict[type, Callable[[Load], Feed]] = {
    GenerateRequest: lambda load: Requests(load, generate_request),
    TokenizedRequest: lambda load: Requests(load, tokenized_request),
    StepPlan: lambda load: Steps(load, step_plan),
    StepHandle: lambda load: Steps(load, step_handle),
    TokenBatch: lambda load: Steps(load, token_batch),
    TextBatch: lambda load: Steps(load, text_batch),
}
FEEDS_OF_TWO: dict[frozenset[type], Callable[[Load], Feed]] = {
    frozenset({TokenizedRequest, StepPlan}): Device,
    frozenset({StepPlan, StepHandle}): Plans,
    frozenset({TextBatch, Open}): lambda load: Steps(load, text_batch, opens=True),
}
"""Where a second type that leads to the stage, or away from it, says more: what it waits for must come."""


def feed_for(stage: str, load: Load, graph: Graph = WHOLE) -> Feed:
    """The feed of the stage in this place of the graph, whatever its class."""
    takes = [link.carries for link in graph.links if link.target == stage and link.lane is Lane.DATA]
    if not takes:
        raise StagelineError(f"{stage} is sent no messages: there is nothing to feed it with")
    types = {takes[0]} | {link.carries for link in graph.links if stage in (link.source, link.target)}
    for pair, feed in FEEDS_OF_TWO.items():
        if takes[0] in pair and pair <= types:
            return feed(load)
    return FEEDS[takes[0]](load)


def _refused(rejected: Rejected) -> StagelineError:
    return StagelineError(f"a sample request was refused: {rejected.message}")


def roomy(load: Load) -> DeviceReady:
    """A device on which nobody waits."""
    longest = load.num_prompt_tokens + load.num_tokens
    return DeviceReady(
        num_blocks=load.num_rows * -(-longest // 16),
        block_size=16,
        max_num_seqs=load.num_rows,
        max_num_batched_tokens=2048 + load.num_rows,
    )


def sampled_tokens(load: Load, plan: StepPlan) -> list[int]:
    """The tokens of a step."""
    return [
        load.token_ids[place(load, request_id, num_computed + num_tokens)]
        for request_id, num_computed, num_tokens, samples in zip(
            plan.request_ids, plan.num_computed, plan.num_tokens, plan.samples, strict=True
        )
        if samples
    ]


def sampled_batch(plan: StepPlan, token_ids: list[int], now_ns: int) -> SampledBatch:
    """The result of a step that was done at once."""
    return SampledBatch(
        step_id=plan.step_id,
        request_ids=list(compress(plan.request_ids, plan.samples)),
        epochs=list(compress(plan.epochs, plan.samples)),
        token_ids=token_ids,
        times_ns=(plan.planned_ns, now_ns, now_ns, now_ns, now_ns),
        drops=[fake_drops(plan.step_id, question) for question in plan.questions],
    )
