"""Shadow: another stage is fed a copy of what a running one takes, and its answers are compared, not sent.

It begins between two batches, with a copy of what the serving stage knows; of stream only with the requests
that come, for a client has one writer. What it may cost is bounded: it holds the loop for `COMPUTING_S` at a
stretch at most, and once it falls behind it ends.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

import msgspec

from pipeline.assemble import Pipeline
from pipeline.core.gate import Gate
from pipeline.errors import SwapRefused
from pipeline.messages import Open
from pipeline.runtime.equivalence import MESSAGES
from pipeline.runtime.handover import class_path, have_same_state
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.patience import within
from pipeline.runtime.shelf import Shelf
from pipeline.runtime.stage import NoState, StageContext
from pipeline.runtime.supervisor import AnyStage, Crew
from pipeline.runtime.swap import STOPPING, MakeStage
from pipeline.runtime.swapped import USUAL, reason_of
from pipeline.runtime.trace import Trace
from pipeline.swapping.copies import Copies
from pipeline.swapping.hearing import Hearing
from pipeline.telemetry import Telemetry

COMPUTING_S, BATCH_S, SETTLE_S = 0.1, 5.0, 2.0
_LOOK_S = 0.01
MAX_TOLD = 20


class Shadowed(msgspec.Struct, frozen=True):
    """What was seen."""

    num_batches: int
    num_messages: int
    """That the shadow took,"""
    num_said: int
    num_said_live: int
    """and messages that each of the two said to it."""
    us_per_message: float
    us_per_message_live: float
    num_differences: int
    differences: list[str]
    """The first ones; `a` is the stage that serves."""
    reason: str = ""
    """Why it ended before its time."""


class _Outlet:
    """Only tells. Never full."""

    def __init__(self, tell: Callable[[object], None]) -> None:
        self._tell = tell

    def offer(self, message: Any) -> bool:
        self._tell(message)
        return True

    async def send(self, message: Any) -> None:
        self._tell(message)

    def post(self, message: Any) -> None:
        self._tell(message)

    def room(self) -> int:
        return 1 << 30

    def when_room(self, callback: Callable[[], None]) -> None:
        """There is."""


async def shadow(pipeline: Pipeline, crew: Crew, make: MakeStage, seconds: float) -> Shadowed:
    """For so long, or until it fails, or whoever waits goes. Raises SwapRefused: it cannot be shadowed."""
    task = crew.beside(_attempt(pipeline, crew, make, seconds))
    try:
        await asyncio.wait([task])
    finally:
        task.cancel()
    outcome = SwapRefused(STOPPING) if task.cancelled() else task.result()
    if isinstance(outcome, SwapRefused):
        raise outcome
    return outcome


async def _attempt(pipeline: Pipeline, crew: Crew, make: MakeStage, seconds: float) -> Shadowed | SwapRefused:
    try:
        return await _shadow(pipeline, crew, make, seconds)
    except Exception as error:
        return SwapRefused(reason_of(error))


async def _shadow(pipeline: Pipeline, crew: Crew, make: MakeStage, seconds: float) -> Shadowed:
    live = crew.stages[0]
    requests: set[int] | None = set() if len(crew.stages) > 1 else None
    hearing = Hearing(pipeline.graph, crew.name, type(live).equivalence, requests)
    stage = make(_aside(pipeline.contexts[crew.name], hearing))
    _check(crew, stage)
    try:
        await within(USUAL.start_s, stage.start(), USUAL.computing_s)
        return await _Shadow(pipeline, crew, stage, hearing, requests).watch(seconds)
    finally:
        hearing.close()
        await stage.stop()


def _aside(ctx: StageContext, hearing: Hearing) -> StageContext:
    """For a stage that nobody hears but us: what it counts is not counted, and it shares nothing."""
    return replace(
        ctx,
        inbox=Inbox[Any](1),
        outlets={kind: _Outlet(hearing.b_sends) for kind in ctx.outlets},
        resources={**ctx.resources, Telemetry: Telemetry(), Gate: Gate(), Shelf: Shelf()},
        trace=Trace(1, enabled=False),
        log=ctx.log.bind(shadow=True),
        is_successor=True,
    )


def _check(crew: Crew, stage: AnyStage) -> None:
    """Whether it can be compared with those that serve. Raises SwapRefused."""
    live = crew.stages[0]
    if live.State is not NoState and not live.is_revocable:
        raise SwapRefused(f"{crew.name} cannot be shadowed: what it knows cannot be copied")
    if not (_begins_empty(live) or have_same_state(type(live), type(stage))):
        raise SwapRefused(
            f"it must have the State of {class_path(type(live))}, which is {class_path(live.State)}"
        )
    if len(crew.stages) > 1 and (live.State is not NoState or live.equivalence is MESSAGES):
        raise SwapRefused(
            f"{crew.name} cannot be shadowed: its {len(crew.stages)} instances share the work, and what one "
            "knows or says cannot be told from the others'"
        )


def _begins_empty(live: AnyStage) -> bool:
    """A client has one writer, which cannot be copied."""
    return Open in live.takes


class _Shadow:
    def __init__(
        self, pipeline: Pipeline, crew: Crew, stage: AnyStage, hearing: Hearing, requests: set[int] | None
    ) -> None:
        self._pipeline = pipeline
        self._crew = crew
        self._stage = stage
        self._hearing = hearing
        self._copies = Copies(crew.inbox, self._begin, hearing.end, hearing.for_a)
        if requests is not None:
            self._copies.request_ids = requests
        self._state: Any = None

    async def watch(self, seconds: float) -> Shadowed:
        before = _cost(self._crew.stages)
        timer = asyncio.get_running_loop().call_later(seconds, self._end)
        try:
            reason = await self._feed()
        finally:
            timer.cancel()
            self._copies.close(perf_counter_ns())
        live_us = _us_per_message(before, _cost(self._crew.stages))
        await self._settle()
        self._hearing.compare()
        reason = reason or self._copies.reason
        differences = self._hearing.differences(is_whole=not reason)
        said = self._hearing.num_messages
        return Shadowed(
            self._copies.num_batches,
            self._copies.num_messages,
            said["b"],
            said["a"],
            _us_per_message((0, 0), _cost([self._stage])),
            live_us,
            len(differences),
            [str(each) for each in differences[:MAX_TOLD]],
            reason,
        )

    def _begin(self, at_ns: int) -> None:
        """Between two batches of the one that serves."""
        if not _begins_empty(self._crew.stages[0]):
            self._state = self._crew.stages[0].export_state()
        self._hearing.begin(at_ns, self._pipeline.inboxes)

    def _end(self) -> None:
        """At once where nothing is handled, else when the next batch is taken."""
        self._copies.is_ending = True
        if not any(stage.service.begun_ns for stage in self._crew.stages):
            self._copies.close(perf_counter_ns())
        else:
            asyncio.get_running_loop().call_later(_LOOK_S, self._end)

    async def _feed(self) -> str:
        """Until there are no more copies, or it fails: why."""
        try:
            while batch := await self._copies.next():
                await within(BATCH_S, self._handle(batch), COMPUTING_S)
        except Exception as error:
            return reason_of(error)
        return ""

    async def _handle(self, batch: list[Any]) -> None:
        stage, service = self._stage, self._stage.service
        if not service.num_batches and self._state is not None:
            stage.import_state(self._state)
        service.begin(perf_counter_ns())
        await stage.handle([self._hearing.for_b(message) for message in batch])
        service.end(perf_counter_ns(), len(batch))
        self._hearing.compare()

    async def _settle(self) -> None:
        """What the serving one has sent is heard when it is taken."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await asyncio.sleep(_LOOK_S)
                while self._hearing.is_waiting:  # noqa: ASYNC110 - inboxes tell nobody
                    await asyncio.sleep(_LOOK_S)


def _cost(stages: Sequence[AnyStage]) -> tuple[int, int]:
    """ns, and messages in them."""
    return (
        sum(stage.service.busy_ns for stage in stages),
        sum(stage.service.num_messages for stage in stages),
    )


def _us_per_message(before: tuple[int, int], after: tuple[int, int]) -> float:
    return round((after[0] - before[0]) / 1e3 / max(1, after[1] - before[1]), 1)
