"""The stand: one stage as config names it, between a source and sinks, with real inboxes on a real loop.

A `Feed` is the source, and hears what the stage gives. What is measured is the stage's own handle(), so the
cost of making messages and of taking them away is not in the figures.
"""

import asyncio
import gc
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import msgspec
import structlog
from msgspec.structs import asdict

from pipeline.assemble import Blueprint, runner_factory
from pipeline.checkpoint.card import ModelCard
from pipeline.core.gate import Gate
from pipeline.errors import StageCrashed
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import StageContext
from pipeline.runtime.supervisor import AnyStage
from pipeline.runtime.trace import Point, Trace
from pipeline.telemetry import Telemetry

_TRACE_POINTS = 1 << 20
_SINK_BOUND = 64
WARM_UP = 10
"""Messages; so many steps take in the prompts of all rows."""


class Feed(ABC):
    """A source for one kind of stage."""

    def __init__(self) -> None:
        self.num_rows = 0
        """Rows sent so far; of a message per request, each is one."""

    @abstractmethod
    async def send(self, stand: "Stand", num_messages: int) -> None:
        """Send so many, at the pace of the stage; return when it has dealt with them."""

    @abstractmethod
    def gave(self, stand: "Stand", message: object) -> None:
        """The stage has sent this message."""

    def end(self, stand: "Stand") -> None:  # noqa: B027 - most feeds leave nothing behind
        """No more is sent: leave nothing behind that the stage would wait for when it drains."""

    def services_us(self, stand: "Stand", since_ns: int) -> list[float]:
        """The time of each message since then. In handle(), that of its batch, shared."""
        services: list[float] = []
        for _, point, _, took_ns, count in stand.trace.points(since_ns):
            if point == Point.HANDLED:
                services += [took_ns / count / 1e3] * count
        return services


@dataclass(frozen=True)
class Stand:
    """The stage's instances, the inbox they share, and one inbox for each stage that they send to."""

    stages: list[AnyStage]
    inbox: Inbox[Any]
    targets: Mapping[str, Inbox[Any]]
    trace: Trace


class StageResult(msgspec.Struct, frozen=True):
    """What so many messages have cost. Times are those of handle()."""

    stage: str
    use: str
    workers: int
    messages: int
    rows: int
    p50_us: float
    """Per message."""
    p99_us: float
    busy_s: float
    """Of all workers together."""
    wakeups: int
    seconds: float
    """Of the clock, source and sinks included."""

    @property
    def us_per_row(self) -> float:
        return self.busy_s / self.rows * 1e6

    @property
    def messages_per_s(self) -> float:
        """What the stage can do when it does nothing but this."""
        return self.messages * self.workers / self.busy_s

    @property
    def rows_per_s(self) -> float:
        return self.rows * self.workers / self.busy_s

    def as_dict(self) -> dict[str, object]:
        """For JSON: the fields and what follows from them."""
        names = ("us_per_row", "messages_per_s", "rows_per_s")
        return asdict(self) | {name: getattr(self, name) for name in names}


def build_stand(blueprint: Blueprint, name: str, card: ModelCard, runner: RunnerFactory | None) -> Stand:
    """The stage `name` of the blueprint; `runner` stands in for the one that config describes."""
    config, make, options = blueprint.config.stages[name], blueprint.classes[name], blueprint.options[name]
    inbox, trace = Inbox[Any](config.inbox), Trace(_TRACE_POINTS)
    bounds = {
        node.name: max(_SINK_BOUND, blueprint.config.stages[node.name].inbox)
        for node in blueprint.graph.nodes
    }
    links = [link for link in blueprint.graph.links if link.source == name]
    targets = {target: Inbox[Any](bounds[target]) for target in sorted({link.target for link in links})}
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
                {link.carries: targets[link.target] for link in links},
                resources,
                trace,
                structlog.get_logger(),
            ),
            options,
        )
        for number in range(config.workers)
    ]
    return Stand(stages, inbox, targets, trace)


async def bench_stage(stand: Stand, feed: Feed, name: str, num_messages: int) -> StageResult:
    """Warm up, with a tenth of the messages at least, then measure them all. Raises StageCrashed."""
    try:
        async with _running(stand, feed):
            await feed.send(stand, max(num_messages // 10, WARM_UP))
            before, rows, since_ns = stand.inbox.stats(), feed.num_rows, perf_counter_ns()
            await feed.send(stand, num_messages)
            seconds = (perf_counter_ns() - since_ns) / 1e9
            after, rows = stand.inbox.stats(), feed.num_rows - rows
            services = feed.services_us(stand, since_ns)
    except BaseExceptionGroup as group:
        error = _first(group)
        raise StageCrashed(f"{name} failed in its bench: {error!r}") from error
    return StageResult(
        stage=name,
        use=f"{type(stand.stages[0]).__module__}:{type(stand.stages[0]).__qualname__}",
        workers=len(stand.stages),
        messages=len(services),
        rows=rows,
        p50_us=_quantile(services, 0.5),
        p99_us=_quantile(services, 0.99),
        busy_s=sum(services) / 1e6,
        wakeups=after.wakeups - before.wakeups,
        seconds=seconds,
    )


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


@asynccontextmanager
async def _running(stand: Stand, feed: Feed) -> AsyncIterator[None]:
    """The stage runs, and its sinks take what it gives; then it drains."""
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
                    stages.create_task(stage.run())
                yield
                feed.end(stand)
                stand.inbox.close()
            for target in stand.targets.values():
                target.close()
    finally:
        for stage in stand.stages:
            await stage.stop()
        gc.unfreeze()


async def _sink(stand: Stand, target: Inbox[Any], feed: Feed) -> None:
    while batch := await target.recv_many():
        for message in batch:
            feed.gave(stand, message)


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
