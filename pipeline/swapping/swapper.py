"""Swapper: what is asked of a running server's stages, from the import path to the event in the trace."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from pipeline import assemble
from pipeline.assemble import Blueprint, Pipeline
from pipeline.checkpoint.card import ModelCard
from pipeline.config import Config, ImportPath
from pipeline.errors import ConfigError, StagelineError, SwapRefused
from pipeline.runtime.handover import check_states, class_path
from pipeline.runtime.stage import Service
from pipeline.runtime.supervisor import Crew
from pipeline.runtime.swap import STOPPING, MakeStage, swap
from pipeline.runtime.swapped import USUAL, Bounds, Ending, Swapped, reason_of
from pipeline.runtime.trace import Point
from pipeline.stages.sample import Sample
from pipeline.swapping.fresh import Sources
from pipeline.swapping.rehearsal import rehearse
from pipeline.swapping.shadow import Shadowed, shadow
from pipeline.telemetry import SwapRecord
from pipeline.telemetry.perfetto import SWAP_ENDINGS
from pipeline.topology import Lane

NOT_READY = "the server is not ready yet"


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to run in a stage's place."""

    use: ImportPath
    options: dict[str, Any] = {}
    drain_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = USUAL.drain_s
    """Where what the one that serves knows cannot be handed over: how long to wait until that is nothing."""


class StageView(msgspec.Struct, frozen=True):
    """What runs."""

    name: str
    use: str
    options: dict[str, Any]
    workers: int
    state: str
    """The class that another one must have in common with it."""
    why_not: str
    """It cannot be swapped; empty: it can."""


class Swapper:
    """One of a running pipeline. One swap at a time.

    Args:
        rehearses: whether a stage must first show on the bench that it works.
        bounds: `batch_s` is more for a stage whose batches have taken longer.
    """

    def __init__(self, pipeline: Pipeline, *, rehearses: bool = True, bounds: Bounds = USUAL) -> None:
        self._pipeline = pipeline
        self._rehearses = rehearses
        self._bounds = bounds
        self._sources = Sources()
        self._is_busy = False

    def stages(self) -> list[StageView]:
        """In data order."""
        return [self._view(name) for name in self._pipeline.graph.names]

    @property
    def _config(self) -> Config:
        return self._pipeline.running.blueprint.config

    async def swap(self, name: str, order: Order) -> Swapped:
        """Check, rehearse, hand over, try. ConfigError: there is no such stage.

        Whoever waits for it may go: the swap goes on.
        """
        crew = self._crew(name)
        if not crew.is_running:
            return Swapped(Ending.REFUSED, NOT_READY)
        task = crew.beside(self._swap(crew, order))
        await asyncio.wait([task])
        return Swapped(Ending.REFUSED, STOPPING) if task.cancelled() else task.result()

    async def _swap(self, crew: Crew, order: Order) -> Swapped:
        """From the first check to the event in the trace."""
        was = self._config.stages[crew.name].use
        try:
            with self._alone():
                swapped = await self._try(crew, order)
        except StagelineError as error:
            swapped = Swapped(Ending.REFUSED, str(error))
        except Exception as error:
            swapped = Swapped(Ending.REFUSED, reason_of(error))
        self._tell(crew.name, was, order.use, swapped)
        return swapped

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One at a time. Raises SwapRefused."""
        if self._is_busy:
            raise SwapRefused("another swap is under way")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    async def shadow(self, name: str, order: Order, seconds: float) -> Shadowed:
        """Compare, and swap nothing. Raises SwapRefused; ConfigError: there is no such stage."""
        crew = self._crew(name)
        if not crew.is_running:
            raise SwapRefused(NOT_READY)
        with self._alone():
            blueprint = await self._prepared(crew, order)
            seen = await shadow(self._pipeline, crew, made_by(blueprint, name), seconds)
        self._pipeline.contexts[name].log.info(
            "shadow", use=order.use, differences=seen.num_differences, reason=seen.reason or None
        )
        return seen

    async def _try(self, crew: Crew, order: Order) -> Swapped:
        blueprint = await self._prepared(crew, order)
        name = crew.name
        swapped = await swap(
            self._pipeline.supervisor,
            crew,
            made_by(blueprint, name),
            self._pipeline.contexts[name],
            self._bounds_of(crew, order),
            self._doors(),
        )
        if swapped.ending is Ending.SWAPPED:
            self._pipeline.running.blueprint = blueprint
        return swapped

    async def _prepared(self, crew: Crew, order: Order) -> Blueprint:
        """Checked and rehearsed."""
        name, config = crew.name, self.config_with(crew.name, order)
        if why_not := self._view(name).why_not:
            raise SwapRefused(why_not)
        if self._rehearses:
            card = self._pipeline.contexts[name].resource(ModelCard)
            await rehearse(self._config, name, order.use, config.stages[name].options, card)
        blueprint = await asyncio.to_thread(self.checked, name, config)
        check_fit(crew, blueprint)
        return blueprint

    def config_with(self, name: str, order: Order) -> Config:
        """What would run. The options of a class that runs already are changed, not replaced."""
        stage = self._config.stages[name]
        options = stage.options | order.options if order.use == stage.use else order.options
        stages = self._config.stages | {name: replace(stage, use=order.use, options=options)}
        return replace(self._config, origin="swap", stages=stages)

    def checked(self, name: str, config: Config) -> Blueprint:
        """Off the loop: it imports. Raises ConfigError, SwapRefused."""
        self._sources.forget_changed(config.stages[name].use)
        try:
            return assemble.check(config)
        except StagelineError:
            raise
        except Exception as error:  # of a module that is imported
            raise SwapRefused(f"{config.stages[name].use}: {type(error).__name__}: {error}") from error

    def _bounds_of(self, crew: Crew, order: Order) -> Bounds:
        batch_s = max(self._bounds.batch_s, 2 * longest_s(crew.stages[0].service))
        return replace(self._bounds, batch_s=batch_s, drain_s=order.drain_s)

    def _doors(self) -> list[Crew]:
        """Where requests wait while a stage drains."""
        graph = self._pipeline.graph
        first = graph.names[0]
        targets = {link.target for link in graph.links if link.source == first and link.lane is Lane.DATA}
        return [crew for crew in self._pipeline.supervisor.crews if crew.name in targets]

    def _crew(self, name: str) -> Crew:
        for crew in self._pipeline.supervisor.crews:
            if crew.name == name:
                return crew
        raise ConfigError(f"there is no stage {name!r}: {', '.join(self._pipeline.graph.names)} run")

    def _view(self, name: str) -> StageView:
        stage, config = self._crew(name).stages[0], self._config.stages[name]
        why_not = "" if stage.State is not None else f"{name} has no State: what it knows would be lost"
        return StageView(name, config.use, config.options, config.workers, class_path(stage.State), why_not)

    # What is seen of it ---------------------------------------------------------------------

    def _tell(self, name: str, was: str, now: str, swapped: Swapped) -> None:
        ctx, at_ns = self._pipeline.contexts[name], perf_counter_ns()
        record = SwapRecord(at_ns, name, was, now, str(swapped.ending), swapped.reason, swapped.paused_ns)
        self._pipeline.telemetry.swapped(record)
        ctx.trace.record(Point.SWAPPED, name, swapped.paused_ns, SWAP_ENDINGS.index(swapped.ending), at_ns)
        write = ctx.log.info if swapped.ending is Ending.SWAPPED else ctx.log.warning
        write(
            "swap",
            ending=str(swapped.ending),
            was=was,
            now=now,
            reason=swapped.reason or None,
            paused_ms=round(swapped.paused_ns / 1e6, 2),
            trial_batches=swapped.num_batches,
        )


def made_by(blueprint: Blueprint, name: str) -> MakeStage:
    """What makes the stage of this name."""
    make, options = blueprint.classes[name], blueprint.options[name]
    return lambda ctx: make(ctx, options)


def check_fit(crew: Crew, blueprint: Blueprint) -> None:
    """Whether the blueprint's stage can follow the one that runs. Raises SwapRefused."""
    old, new = crew.stages[0], blueprint.classes[crew.name]
    check_states(type(old), new)
    if not (isinstance(old, Sample) or hasattr(new, "device_op")):
        return
    now, then = getattr(old, "device_op", None), getattr(new, "device_op", None)
    if now != then:
        raise SwapRefused(
            f"its device half is {then}, and {now} is what the device workers launch: restart to change it"
        )
    if then != Sample.device_op and blueprint.options[crew.name] != old.options:
        raise SwapRefused(f"its device half {then} was made with other options: restart to change them")


def longest_s(service: Service) -> float:
    """About as long as the longest of its batches took, 10 s at most: some stages wait for the device."""
    bounds = service.times.bounds
    counted = [bound for bound, count in zip(bounds, service.times.counts, strict=False) if count]
    return min(10.0, counted[-1] / 1e9) if counted else 0.0
