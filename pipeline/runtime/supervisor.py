"""Supervisor: starts sinks first, drains sources first, fails fast on a crash.

A fault of one request is an answer and never gets here. A fault of a stage ends the pipeline: all stages are
stopped, and the door answers in its own stop() whatever is still live.
"""

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from pipeline.errors import StageCrashed
from pipeline.runtime.stage import Stage

AnyStage = Stage[Any, Any]
Pool = Sequence[AnyStage]
"""The instances of one stage; they share an inbox."""


class Companion(Protocol):
    """What lives beside the stages and watches them: started when all of them run, stopped before they are.

    It must not end by itself; a fault in start() is a fault of the pipeline's start.
    """

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Idempotent; called after every start(), failed or not."""
        ...


class Supervisor:
    """Runs the stages of one pipeline, given in data order (source first), and their companions."""

    def __init__(
        self,
        pools: Sequence[Pool],
        drain_timeout_s: float,
        log: structlog.typing.FilteringBoundLogger,
        companions: Sequence[Companion] = (),
    ) -> None:
        self._pools = pools
        self._companions = companions
        self._drain_timeout_s = drain_timeout_s
        self._log = log

    async def run(self, until: asyncio.Event, on_ready: Callable[[], None] = lambda: None) -> None:
        """Start all, run until the event is set, then drain. Cancelling this forces the end.

        Raises StageCrashed, with its cause, if a stage failed; what start() raised, if that failed.
        """
        started: list[AnyStage] = []
        beside: list[Companion] = []
        try:
            await self._start(started)
            await self._accompany(beside)
            on_ready()
            async with asyncio.TaskGroup() as group:
                tasks = [[group.create_task(self._guard(s), name=s.ctx.name) for s in p] for p in self._pools]
                await until.wait()
                await self._drain(tasks)
        except* StageCrashed as crash:
            raise crash.exceptions[0]  # noqa: B904 - it keeps its own __cause__
        finally:
            for companion in reversed(beside):
                await self._stop(companion, type(companion).__name__)
            for stage in reversed(started):  # the door first: it answers whoever still waits
                await self._stop(stage, stage.ctx.name)

    async def _start(self, started: list[AnyStage]) -> None:
        for pool in reversed(self._pools):
            for stage in pool:
                if pool is self._pools[0]:
                    gc.collect()
                    gc.freeze()  # a full collection over the loaded heap would stop every stream
                started.append(stage)
                await stage.start()

    async def _accompany(self, beside: list[Companion]) -> None:
        for companion in self._companions:
            beside.append(companion)
            await companion.start()

    async def _drain(self, tasks: Sequence[Sequence[asyncio.Task[None]]]) -> None:
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                for pool, running in zip(self._pools, tasks, strict=True):
                    pool[0].ctx.inbox.close()
                    await asyncio.gather(*running)
        except TimeoutError:
            self._log.warning("drain timed out", after_s=self._drain_timeout_s)
            for running in tasks:
                for task in running:
                    task.cancel()

    async def _stop(self, part: AnyStage | Companion, name: str) -> None:
        try:
            await part.stop()
        except Exception:
            self._log.exception("did not stop cleanly", part=name)

    @staticmethod
    async def _guard(stage: AnyStage) -> None:
        try:
            await stage.run()
        except Exception as error:
            raise StageCrashed(f"stage {stage.ctx.name!r} crashed: {error!r}") from error
