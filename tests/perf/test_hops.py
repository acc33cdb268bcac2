"""What a step costs does not depend on how many rows it has: sends and wake-ups on every link are counted.

A token is a row, never a queue item: this is what makes 256 streams cost what one does, per step.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import Any, cast

import pytest

from pipeline import assemble
from pipeline.checkpoint.fake import byte_card
from pipeline.config import loads
from pipeline.errors import RequestError
from pipeline.messages import (
    Cancel,
    Completion,
    DeviceReady,
    FinishReason,
    GenerateRequest,
    Open,
    SamplingParams,
    StepPlan,
)
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import FakeRunner

STEPS = 40
WARM_UP = 6
AFTER_SCHEDULE = ("execute", "sample", "schedule", "detokenize", "stream")
CAPACITY = DeviceReady(num_blocks=4096, block_size=16, max_num_seqs=256, max_num_batched_tokens=2048)
PLENTY = 1_000_000

Counts = dict[str, tuple[int, int]]
"""By inbox: messages sent and posted to it, wake-ups of its reader."""


class Sink:
    """A client that reads everything; knows how it ended."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.ending: Completion | RequestError | None = None

    def delta(self, text: str, num_tokens: int) -> None:
        self.num_tokens += num_tokens

    def done(self, completion: Completion) -> None:
        self.ending = completion

    def error(self, error: RequestError) -> None:
        self.ending = error

    def buffered_bytes(self) -> int:
        return 0

    def is_away(self) -> bool:
        return False


class Gate:
    """Lets the device make so many steps and no more; between them the pipeline comes to rest."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        """Of each step so far."""
        self._allowed = threading.Semaphore(0)

    def before_step(self, plan: StepPlan) -> None:
        self._allowed.acquire()
        self.rows.append(len(plan.slots))

    def allow(self, num_steps: int) -> None:
        self._allowed.release(num_steps)


def counts_of(pipeline: assemble.Pipeline) -> Counts:
    stats = {name: pipeline.inboxes[name].stats() for name in AFTER_SCHEDULE}
    return {name: (each.sent + each.posted, each.wakeups) for name, each in stats.items()}


async def holds(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - another thread and all stages decide: there is no one event
        await asyncio.sleep(0.001)


async def at_rest(pipeline: assemble.Pipeline, gate: Gate, credits: int, num_steps: int) -> Counts:
    """The counts once `num_steps` are done, all credits are out again and the text side is through."""
    plans = pipeline.inboxes["execute"]
    await holds(lambda: len(gate.rows) == num_steps and plans.stats().sent == num_steps + credits)
    before = None
    while before != (now := counts_of(pipeline)):
        before = now
        await asyncio.sleep(0.01)
    return now


async def serving(credits: int, gate: Gate, use: Callable[[assemble.Pipeline], Awaitable[Counts]]) -> Counts:
    """Run the whole pipeline around `use`, then drain it."""
    toml = f"[stages.ingress.options]\nport = 0\n[stages.schedule.options]\ncredits = {credits}\n"
    factory = RunnerFactory(lambda: cast(Any, FakeRunner(CAPACITY, gate.before_step)))
    pipeline = assemble.build(assemble.check(loads(toml, "the test")), byte_card(), factory)
    ready, until = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(pipeline.supervisor.run(until, ready.set))
        try:
            await ready.wait()
            return await use(pipeline)
        finally:
            gate.allow(PLENTY)
            until.set()


async def per_steps(rows: int, credits: int) -> Counts:
    """What STEPS steps of `rows` decoding rows move on each link."""
    gate, sinks = Gate(), [Sink() for _ in range(rows)]

    async def measure(pipeline: assemble.Pipeline) -> Counts:
        for request_id, sink in enumerate(sinks):
            sampling = SamplingParams(max_tokens=4 * (WARM_UP + STEPS), ignore_eos=True)
            now_ns = perf_counter_ns()
            request = GenerateRequest(request_id, [65], None, sampling, now_ns, now_ns)
            assert pipeline.inboxes["tokenize"].offer(request)
            pipeline.inboxes["stream"].post(Open(request_id, sink, now_ns))
        await holds(lambda: pipeline.inboxes["schedule"].stats().sent == rows)
        gate.allow(WARM_UP)
        before = await at_rest(pipeline, gate, credits, WARM_UP)
        gate.allow(STEPS)
        after = await at_rest(pipeline, gate, credits, WARM_UP + STEPS)
        assert gate.rows[WARM_UP:] == [rows] * STEPS
        for request_id in range(rows):
            pipeline.inboxes["schedule"].post(Cancel(request_id, FinishReason.CANCELLED))
        return {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in after}

    counts = await serving(credits, gate, measure)
    for sink in sinks:
        assert isinstance(sink.ending, Completion)
        assert sink.ending.num_output_tokens >= STEPS
    return counts


def test_a_step_of_256_rows_moves_what_a_step_of_one_row_moves() -> None:
    """With one step in flight, exactly: one message and one wake-up a link."""
    one = asyncio.run(per_steps(rows=1, credits=1))
    assert one == dict.fromkeys(AFTER_SCHEDULE, (STEPS, STEPS))
    assert asyncio.run(per_steps(rows=256, credits=1)) == one


@pytest.mark.parametrize("rows", [1, 256])
def test_two_steps_in_flight_cost_no_more(rows: int) -> None:
    """Steps that end together share messages and wake-ups; they never need more."""
    counts = asyncio.run(per_steps(rows=rows, credits=2))
    for sent, wakeups in counts.values():
        assert STEPS // 2 <= sent <= STEPS
        assert wakeups <= STEPS
