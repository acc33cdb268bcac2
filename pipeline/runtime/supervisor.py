"""Supervisor: starts sinks first, drains sources first, fails fast on a crash.

The instances of one stage are a crew: they share an inbox, and others may take their place (runtime.swap).

A fault of one request is an answer and never gets here. A fault of a stage ends the pipeline: all stages are
stopped, and the door answers in its own stop() whatever is still live.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import structlog

from pipeline.errors import StageCrashed
from pipeline.runtime import heap
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import Stage

AnyStage = Stage[Any, Any]
R = TypeVar("R")


class Companion(Protocol):
    """What lives beside the stages and watches them: started when all of them run, stopped before they are.

    It must not end by itself; a fault in start() is a fault of the pipeline's start.
    """

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Idempotent; called after every start(), failed or not."""
        ...


class Crew:
    """The instances of one stage, which share an inbox, each with a seat: its place in `stages`."""

    def __init__(self, stages: list[AnyStage]) -> None:
        self.stages = stages
        """Changed in place when others take over."""
        self.tasks: dict[int, asyncio.Task[None]] = {}
        """Of the seats whose stage runs."""
        self.works: set[asyncio.Task[Any]] = set()
        """What is done for the crew beside its stages."""
        self._group: asyncio.TaskGroup | None = None

    @property
    def is_running(self) -> bool:
        """The pipeline is ready, or was."""
        return self._group is not None

    @property
    def name(self) -> str:
        return self.stages[0].ctx.name

    @property
    def inbox(self) -> Inbox[Any]:
        return self.stages[0].ctx.inbox

    def run(self, group: asyncio.TaskGroup) -> None:
        """Begin: every instance in a task of its own."""
        self._group = group
        self.fill_seats()

    def fill_seats(self) -> None:
        """Let those run that do not."""
        for seat, stage in enumerate(self.stages):
            if seat not in self.tasks:
                self.begin(seat, stage.run())

    def begin(self, seat: int, work: Coroutine[Any, Any, None]) -> None:
        """Let a stage that has this seat do this, in a task whose fault ends the pipeline."""
        task = self._running().create_task(_guard(work, self.name), name=self.name)
        self.tasks[seat] = task
        task.add_done_callback(lambda _: self.tasks.pop(seat))

    def beside(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Let this be done for the crew, until the drain has ended at most. It must not raise."""
        task = self._running().create_task(work, name=f"beside {self.name}")
        self.works.add(task)
        task.add_done_callback(self.works.discard)
        return task

    def _running(self) -> asyncio.TaskGroup:
        assert self._group is not None, "run() comes first"
        return self._group

    async def ended(self) -> None:
        """Until none of them runs, those that begin meanwhile included."""
        while self.tasks:
            await asyncio.wait(self.tasks.values())


class Supervisor:
    """Runs the stages of one pipeline, given in data order (source first), and their companions."""

    def __init__(
        self,
        pools: Sequence[list[AnyStage]],
        drain_timeout_s: float,
        log: structlog.typing.FilteringBoundLogger,
        companions: Sequence[Companion] = (),
    ) -> None:
        self.crews = [Crew(pool) for pool in pools]
        self.changing = asyncio.Lock()
        """Held while a stage is handed over, and by the drain: neither begins within the other."""
        self.swapping = asyncio.Lock()
        """Held from the start of a stage that is to take over to the end of its trial."""
        self.is_draining = False
        self._companions = companions
        self._drain_timeout_s = drain_timeout_s
        self._log = log

    async def run(self, until: asyncio.Event, on_ready: Callable[[], None] = lambda: None) -> None:
        """Start all, run until the event is set, then drain. Cancelling this forces the end.

        Raises StageCrashed, with its cause, if a stage failed; what start() raised, if that failed.
        """
        started: list[Crew] = []
        beside: list[Companion] = []
        try:
            await self._start(started)
            await self._accompany(beside)
            on_ready()
            async with asyncio.TaskGroup() as group:
                for crew in self.crews:
                    crew.run(group)
                await until.wait()
                await self._drain()
        except* StageCrashed as crash:
            raise crash.exceptions[0]  # noqa: B904 - it keeps its own __cause__
        finally:
            for companion in reversed(beside):
                await self._stop(companion, type(companion).__name__)
            for crew in reversed(started):  # the door first: it answers whoever still waits
                for stage in reversed(crew.stages):
                    await self._stop(stage, crew.name)

    async def _start(self, started: list[Crew]) -> None:
        for crew in reversed(self.crews):
            if crew is self.crews[0]:
                heap.settle()
            started.append(crew)
            for stage in crew.stages:
                await stage.start()

    async def _accompany(self, beside: list[Companion]) -> None:
        for companion in self._companions:
            beside.append(companion)
            await companion.start()

    async def _drain(self) -> None:
        self.is_draining = True
        try:
            async with asyncio.timeout(self._drain_timeout_s), self.changing:
                for crew in self.crews:
                    crew.inbox.close()
                    await crew.ended()
        except TimeoutError:
            self._log.warning("drain timed out", after_s=self._drain_timeout_s)
            for crew in self.crews:
                for task in crew.tasks.values():
                    task.cancel()
        finally:
            for crew in self.crews:
                for work in crew.works:
                    work.cancel()

    async def _stop(self, part: AnyStage | Companion, name: str) -> None:
        try:
            await part.stop()
        except Exception:
            self._log.exception("did not stop cleanly", part=name)


async def _guard(work: Coroutine[Any, Any, None], name: str) -> None:
    try:
        await work
    except Exception as error:
        raise StageCrashed(f"stage {name!r} crashed: {error!r}") from error
