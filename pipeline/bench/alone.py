"""Alone: one stage, measured as often as is asked, each time as a new instance on a new stand."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from time import perf_counter_ns

import uvloop

from pipeline.assemble import Blueprint
from pipeline.bench.measure import bench_stage, count_allocations
from pipeline.bench.replay import MAX, Pace
from pipeline.bench.replay.alarm import Alarm
from pipeline.bench.result import Allocations, StageResult
from pipeline.bench.stand import TRACE_POINTS, Feed, Stand, build_stand, is_door
from pipeline.bench.virtual_time import VirtualLoop
from pipeline.checkpoint.card import ModelCard
from pipeline.messages import StepHandle
from pipeline.runtime.bridge import RunnerFactory

ALLOCATION_MESSAGES = 200
"""So many are counted."""


@dataclass(frozen=True)
class Alone:
    """A stage and where its messages come from.

    Args:
        runner: stands in for the one that config describes.
        num_messages: what is measured, and
        num_warm: what goes before. None: as bench_stage has it.
    """

    blueprint: Blueprint
    stage: str
    card: ModelCard
    runner: RunnerFactory | None
    new_feed: Callable[[Pace], Feed]
    num_messages: int
    num_warm: int | None = None
    begun_ns: int = 0
    """When its recording began, by the clock of that server."""

    @property
    def owns_device(self) -> bool:
        return any(
            link.source == self.stage and link.carries is StepHandle for link in self.blueprint.graph.links
        )

    @property
    def has_own_time(self) -> bool:
        """It works where the loop does not see it."""
        return self.owns_device or is_door(self.blueprint.graph, self.stage)

    def measure(
        self, rate: str, *, is_virtual: bool = False, watching: AbstractContextManager[object] | None = None
    ) -> StageResult:
        """Raises StageCrashed.

        Args:
            rate: see Pace.of.
            is_virtual: in time that skips what nobody works in.
        """
        make_loop = VirtualLoop if is_virtual else uvloop.new_event_loop
        with asyncio.Runner(loop_factory=make_loop) as loop:
            return loop.run(self._measured(rate, watching))

    def allocations(self) -> Allocations | None:
        """As fast as the stage takes them; None: it is sent nothing. Raises StageCrashed."""
        if is_door(self.blueprint.graph, self.stage):
            return None
        count = min(ALLOCATION_MESSAGES, self.num_messages)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            return loop.run(self._counted(count))

    async def _measured(self, rate: str, watching: AbstractContextManager[object] | None) -> StageResult:
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            return await self.measured(Pace.of(rate), rate, self.stand(loop.clock), watching=watching)
        with Alarm() as alarm:
            pace = Pace.of(rate, alarm.call_later)
            return await self.measured(pace, rate, self.stand(), watching=watching)

    async def measured(
        self,
        pace: Pace,
        rate: str,
        stand: Stand,
        *,
        watching: AbstractContextManager[object] | None = None,
        among: AbstractAsyncContextManager[None] | None = None,
    ) -> StageResult:
        """See bench_stage."""
        return await bench_stage(
            stand,
            self.new_feed(pace),
            self.stage,
            self.num_messages,
            num_warm=self.num_warm,
            rate=rate,
            watching=watching,
            among=among,
        )

    async def _counted(self, count: int) -> Allocations:
        feed = self.new_feed(Pace.of(MAX))
        return await count_allocations(self.stand(), feed, self.stage, count)

    def stand(self, clock: Callable[[], int] = perf_counter_ns, trace_points: int = TRACE_POINTS) -> Stand:
        return build_stand(self.blueprint, self.stage, self.card, self.runner, clock, trace_points)
