"""A small pipeline for swaps: a source, a stage that counts, and whoever takes its place."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import structlog

from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import NoOptions, Outlet, Stage, StageContext
from pipeline.runtime.supervisor import Crew, Supervisor
from pipeline.runtime.swap import swap
from pipeline.runtime.swapped import Bounds, Swapped

QUICK = Bounds(
    start_s=0.5,
    computing_s=0.1,
    boundary_s=0.3,
    drain_s=0.2,
    pool_boundary_s=0.3,
    batch_s=0.1,
    trial_s=0.02,
    trial_batches=3,
    max_trial_s=0.1,
)


class Number(msgspec.Struct, frozen=True):
    value: int


class Said(msgspec.Struct, frozen=True):
    """A number, the sum of all so far, and who says so."""

    value: int
    total: int
    who: str


class Total(msgspec.Struct, frozen=True):
    total: int = 0


class Counter(Stage[Number, NoOptions]):
    """Sends on each number with the sum of all that came."""

    takes = (Number,)
    gives = (Said,)
    State = Total
    is_revocable = True

    def __init__(self, ctx: StageContext, who: str = "old") -> None:
        super().__init__(ctx, NoOptions())
        self.who = who
        self.total = 0
        self.num_stops = self.num_handled = 0

    async def handle(self, batch: Sequence[Number]) -> None:
        for number in batch:
            self.total += number.value
            await self.ctx.outlet(Said).send(Said(number.value, self.total, self.who))
        self.num_handled += 1

    async def stop(self) -> None:
        self.num_stops += 1

    def export_state(self) -> Total:
        return Total(self.total)

    def import_state(self, state: Total) -> None:
        self.total = state.total


class Failing(Counter):
    """Does half of the n-th batch, then what `fail` does."""

    def __init__(self, ctx: StageContext, fail: Callable[[], Any], at: int = 0) -> None:
        super().__init__(ctx, "new")
        self._fail = fail
        self._at = at

    async def handle(self, batch: Sequence[Number]) -> None:
        if self.num_handled == self._at:
            await super().handle(batch[: len(batch) // 2 + 1])
            waits = self._fail()
            if waits is not None:
                await waits
        await super().handle(batch)


def crash() -> None:
    raise ValueError("broken")


def hang() -> Any:
    return asyncio.sleep(60)


def block() -> None:
    time.sleep(60)


class World:
    """The stage's crew under a supervisor, and an open end."""

    def __init__(self, num_seats: int, bound: int) -> None:
        self.inbox: Inbox[Any] = Inbox(1000)
        self.end: Inbox[Any] = Inbox(bound)
        outlets: dict[type, Outlet[Any]] = {Said: self.end}
        self.ctx = StageContext("count", self.inbox, outlets, {})
        self.olds: list[Any] = [Counter(self.ctx) for _ in range(num_seats)]
        self.news: list[Any] = []
        self.until = asyncio.Event()
        self.supervisor = Supervisor([list(self.olds)], 2.0, structlog.get_logger())

    @property
    def crew(self) -> Crew:
        return self.supervisor.crews[0]

    async def swap(
        self, make: Callable[[StageContext], Any] = lambda ctx: Counter(ctx, "new"), bounds: Bounds = QUICK
    ) -> Swapped:
        def make_and_keep(ctx: StageContext) -> Any:
            self.news.append(make(ctx))
            return self.news[-1]

        return await swap(self.supervisor, self.crew, make_and_keep, self.ctx, bounds)

    async def feed(self, numbers: range, every_s: float = 0.001) -> None:
        for value in numbers:
            await self.inbox.send(Number(value))
            await asyncio.sleep(every_s)

    async def said(self, count: int) -> list[Said]:
        """The next so many."""
        said: list[Said] = []
        async with asyncio.timeout(5):
            while len(said) < count:
                said += await self.end.recv_many(count - len(said))
        return said


@asynccontextmanager
async def counting(num_seats: int = 1, bound: int = 1000) -> AsyncIterator[World]:
    """At its end it is drained; whoever was made has been stopped, and no task is left."""
    num_tasks = len(asyncio.all_tasks())
    world = World(num_seats, bound)
    running = asyncio.create_task(world.supervisor.run(world.until))
    await asyncio.sleep(0.001)
    try:
        yield world
    finally:
        world.until.set()
        await asyncio.wait_for(running, 5)
    assert all(stage.num_stops for stage in world.olds + world.news)
    assert len(asyncio.all_tasks()) == num_tasks


def totals(said: Sequence[Said]) -> bool:
    """Whether nothing is lost, doubled or reordered."""
    return [each.total for each in said] == [
        sum(one.value for one in said[: at + 1]) for at in range(len(said))
    ]
