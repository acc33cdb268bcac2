"""The stand: one stage as config names it, between a source and sinks, with real inboxes on a real loop.

A `Feed` is the source, and hears what the stage gives. What is measured is the stage's own handle(), so the
cost of making messages and of taking them away is not in the figures.
"""

import asyncio
import gc
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import structlog

from pipeline.assemble import Blueprint, runner_factory
from pipeline.checkpoint.card import ModelCard
from pipeline.core.gate import Gate
from pipeline.messages import GenerateRequest
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import StageContext
from pipeline.runtime.supervisor import AnyStage
from pipeline.runtime.trace import Point, Trace
from pipeline.telemetry import Telemetry
from pipeline.topology import Graph
from pipeline.wiring import outlets

TRACE_POINTS = 1 << 20
_SINK_BOUND = 64
WARM_UP = 10
"""Messages; so many steps take in the prompts of all rows."""


Handle = Callable[[Sequence[Any]], Awaitable[None]]


class Feed(ABC):
    """A source for one kind of stage."""

    def __init__(self) -> None:
        self.num_rows = 0
        """Rows sent so far; of a message per request, each is one."""
        self.recorded_ns = 0
        """In which what was sent so far came when it was recorded; 0: it was not."""
        self.num_left_out = 0
        """Rows of a recording that are not sent, because their request began before it."""

    @abstractmethod
    async def send(self, stand: "Stand", num_messages: int) -> None:
        """Send so many, at the pace of the stage; return when it has dealt with them."""

    @abstractmethod
    def gave(self, stand: "Stand", message: object) -> None:
        """The stage has sent this message."""

    def end(self, stand: "Stand") -> None:  # noqa: B027 - most feeds leave nothing behind
        """No more is sent: leave nothing behind that the stage would wait for when it drains."""

    def close(self) -> None:  # noqa: B027 - most feeds hold nothing
        """Let go of what it holds; the stage has stopped, maybe by a fault."""

    def services_us(self, stand: "Stand", since_ns: int) -> list[float]:
        """The time of each message since then. In handle(), that of its batch, shared."""
        return stand.handled_us(since_ns)


@dataclass(frozen=True)
class Stand:
    """The stage's instances, the inbox they share, and one inbox for each stage that they send to."""

    stages: list[AnyStage]
    inbox: Inbox[Any]
    targets: Mapping[str, Inbox[Any]]
    trace: Trace
    clock: Callable[[], int] = perf_counter_ns
    """That of the stages."""

    @property
    def use(self) -> str:
        """The stage's class, by import path."""
        kind = type(self.stages[0])
        return f"{kind.__module__}:{kind.__qualname__}"

    @property
    def is_at_rest(self) -> bool:
        """Nothing waits and nothing is handled."""
        return not self.inbox.stats().depth and not any(stage.service.begun_ns for stage in self.stages)

    def handled_us(self, since_ns: int) -> list[float]:
        """The time of each message since then in handle(): that of its batch, shared."""
        services: list[float] = []
        for _, point, _, took_ns, count in self.trace.points(since_ns):
            if point == Point.HANDLED:
                services += [took_ns / count / 1e3] * count
        return services


def is_door(graph: Graph, stage: str) -> bool:
    """It takes requests from outside, and is sent nothing."""
    links = graph.links
    return not any(link.target == stage for link in links) and any(
        link.source == stage and link.carries is GenerateRequest for link in links
    )


def build_stand(
    blueprint: Blueprint,
    name: str,
    card: ModelCard,
    runner: RunnerFactory | None,
    clock: Callable[[], int] = perf_counter_ns,
    trace_points: int = TRACE_POINTS,
) -> Stand:
    """The stage `name` of the blueprint; `runner` stands in for the one that config describes.

    Args:
        trace_points: how many are kept. `services_us` looks at all of them.
    """
    config, make, options = blueprint.config.stages[name], blueprint.classes[name], blueprint.options[name]
    inbox, trace = Inbox[Any](config.inbox, clock), Trace(trace_points)
    bounds = {
        node.name: max(_SINK_BOUND, blueprint.config.stages[node.name].inbox)
        for node in blueprint.graph.nodes
    }
    links = [link for link in blueprint.graph.links if link.source == name]
    targets = {
        target: Inbox[Any](bounds[target], clock) for target in sorted({link.target for link in links})
    }
    resources = {
        ModelCard: card,
        Gate: Gate(),
        Telemetry: Telemetry(),
        RunnerFactory: runner or runner_factory(blueprint, card),
    }
    stages = [
        make(
            StageContext(
                f"{name}.{number}",  # a name of its own, to tell the instances' trace points apart
                inbox,
                outlets(blueprint.graph, name, targets),
                resources,
                trace,
                structlog.get_logger(),
                clock,
            ),
            options,
        )
        for number in range(config.workers)
    ]
    return Stand(stages, inbox, targets, trace, clock)


@asynccontextmanager
async def running(
    stand: Stand, feed: Feed, handled: Callable[[AnyStage], Handle | None] = lambda stage: None
) -> AsyncIterator[None]:
    """The stage runs, and its sinks take what it gives; then it drains.

    Args:
        handled: what is called in the place of each instance's handle(); None: that.
    """
    try:
        for stage in stand.stages:
            await stage.start()
        gc.collect()
        gc.freeze()
        async with asyncio.TaskGroup() as sinks:
            for target in stand.targets.values():
                sinks.create_task(_sink(stand, target, feed))
            async with asyncio.TaskGroup() as stages:
                for stage in stand.stages:
                    stages.create_task(stage.run(handled(stage)))
                yield
                feed.end(stand)
                stand.inbox.close()
            for target in stand.targets.values():
                target.close()
    finally:
        for stage in stand.stages:
            await stage.stop()
        feed.close()
        gc.unfreeze()


async def _sink(stand: Stand, target: Inbox[Any], feed: Feed) -> None:
    while batch := await target.recv_many():
        for message in batch:
            feed.gave(stand, message)
