"""Swap: another stage in the place of one that runs, between two batches, and back if it fails.

    the newcomers start          while the others serve
    the inbox is paused          what is sent meanwhile waits in it; whoever is in handle() finishes his batch
    state moves                  import_state(export_state()), see runtime.handover
    the inbox is resumed         the newcomers serve, on trial (runtime.trial) where they are revocable
    the trial ends               the others are stopped; or the newcomers are, and the others serve again

A drain may begin at any time but while state moves, and finds whoever serves then.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from time import perf_counter_ns

import msgspec

from pipeline.errors import SwapRefused
from pipeline.runtime.handover import Seat, check_states, class_path, held
from pipeline.runtime.hold import Hold
from pipeline.runtime.patience import within
from pipeline.runtime.stage import StageContext
from pipeline.runtime.supervisor import AnyStage, Crew, Supervisor
from pipeline.runtime.trial import Trial

MakeStage = Callable[[StageContext], AnyStage]
STOPPING = "the server is stopping"
_LOOK_S = 0.05


class Bounds(msgspec.Struct, frozen=True):
    """How long things may take, in seconds."""

    start_s: float = 10.0
    """start() of a newcomer, beside the stage that serves,"""
    computing_s: float = 0.3
    """of which it may hold the loop for so long at a stretch; as may a state that moves."""
    boundary_s: float = 5.0
    """Until a stage that is alone has finished the batch in its hands: it takes no other meanwhile anyway."""
    pool_boundary_s: float = 0.3
    """The same of a pool, whose others wait for the last one."""
    batch_s: float = 0.4
    """A batch on trial."""
    trial_s: float = 1.0
    """After so long and `trial_batches` the newcomers are trusted,"""
    trial_batches: int = 16
    max_trial_s: float = 3.0
    """or after so long, if there is less to do."""


USUAL = Bounds()


class Ending(StrEnum):
    REFUSED = "refused"
    """The stage that served before never ceased to."""
    ROLLED_BACK = "rolled_back"
    SWAPPED = "swapped"


class Swapped(msgspec.Struct, frozen=True):
    """How it ended."""

    ending: Ending
    reason: str = ""
    """Why the stage that served before still does."""
    paused_ns: int = 0
    """For so long nobody took from the inbox when the stage was handed over."""
    num_batches: int = 0
    """Handled on trial without a fault."""


async def swap(
    supervisor: Supervisor, crew: Crew, make: MakeStage, ctx: StageContext, bounds: Bounds = USUAL
) -> Swapped:
    """Put what `make` makes in the place of the crew's stages; returns when it is decided.

    Whoever waits for it may be cancelled: the swap goes on.

    Args:
        ctx: that of the stages, with nothing held.
    """
    task = crew.beside(_attempt(supervisor, crew, make, ctx, bounds))
    await asyncio.wait([task])
    return Swapped(Ending.REFUSED, STOPPING) if task.cancelled() else task.result()


async def _attempt(
    supervisor: Supervisor, crew: Crew, make: MakeStage, ctx: StageContext, bounds: Bounds
) -> Swapped:
    if supervisor.swapping.locked():
        return Swapped(Ending.REFUSED, "another swap is under way")
    async with supervisor.swapping:
        attempt = _Swap(supervisor, crew, bounds)
        try:
            return await attempt.run(make, ctx)
        except SwapRefused as error:
            return Swapped(Ending.REFUSED, str(error))
        finally:
            await attempt.stop_those_aside()


class _Swap:
    """One swap, from the start of the newcomers to the end of their trial."""

    def __init__(self, supervisor: Supervisor, crew: Crew, bounds: Bounds) -> None:
        self._supervisor = supervisor
        self._crew = crew
        self._bounds = bounds
        self._seats: list[Seat] = []
        self._num_on_trial = 0
        self._failure: Exception | None = None
        self._is_decided = asyncio.Event()
        self._are_back = asyncio.Event()

    async def run(self, make: MakeStage, ctx: StageContext) -> Swapped:
        """Raises SwapRefused, with the crew as it was."""
        for number, old in enumerate(self._crew.stages):
            await self._start(number, old, make, ctx)
        paused_ns = await self._hand_over()
        if self._is_revocable:
            await self._judge()
        num_batches = sum(seat.trial.num_batches for seat in self._seats)
        if self._failure is None:
            return Swapped(Ending.SWAPPED, "", paused_ns, num_batches)
        return Swapped(Ending.ROLLED_BACK, reason_of(self._failure), paused_ns, num_batches)

    async def stop_those_aside(self) -> None:
        """Idempotent, as stop() is."""
        for seat in self._seats:
            for stage in (seat.old, seat.new):
                if stage not in self._crew.stages:
                    try:
                        await stage.stop()
                    except Exception:
                        stage.ctx.log.exception("did not stop cleanly", part=class_path(type(stage)))

    @property
    def _is_revocable(self) -> bool:
        return self._seats[0].new.is_revocable

    # Before anything live is touched --------------------------------------------------------

    async def _start(self, number: int, old: AnyStage, make: MakeStage, ctx: StageContext) -> None:
        async def start() -> None:
            hold = Hold()
            new = make(held(ctx, hold))
            self._seats.append(
                Seat(number, old, new, Trial(new, hold, self._bounds.batch_s, self._fail), hold)
            )
            check_states(type(old), type(new))
            await new.start()

        try:
            await within(self._bounds.start_s, start(), self._bounds.computing_s)
        except SwapRefused:
            raise
        except Exception as error:
            raise SwapRefused(f"it does not start: {reason_of(error)}") from error

    # The handover ---------------------------------------------------------------------------

    async def _hand_over(self) -> int:
        """For how long nobody took from the inbox, ns. Raises SwapRefused, with the others serving."""
        crew = self._crew
        async with self._supervisor.changing:
            if crew.inbox.is_closed:
                raise SwapRefused(STOPPING)
            begin_ns = perf_counter_ns()
            crew.inbox.pause()
            try:
                await self._reach_boundary()
                await within(self._bounds.computing_s, self._move_states())
            except Exception as error:
                crew.inbox.resume()
                crew.fill_seats()
                raise SwapRefused(reason_of(error)) from error
            crew.stages[:] = [seat.new for seat in self._seats]
            crew.inbox.resume()
            self._let_serve()
            return perf_counter_ns() - begin_ns

    async def _reach_boundary(self) -> None:
        bounds = self._bounds
        seconds = bounds.boundary_s if len(self._seats) == 1 else bounds.pool_boundary_s
        try:
            async with asyncio.timeout(seconds):
                await self._crew.ended()
        except TimeoutError as error:
            raise SwapRefused(f"the stage was not between two batches within {seconds:g} s") from error

    async def _move_states(self) -> None:
        """All of them or none."""
        moved: list[Seat] = []
        try:
            for seat in self._seats:
                await seat.hand_over()
                moved.append(seat)
        except Exception as error:
            for seat in moved:
                seat.take_back()
            raise SwapRefused(f"what the stage knows was not handed over: {reason_of(error)}") from error

    def _let_serve(self) -> None:
        if not self._is_revocable:
            self._crew.fill_seats()
            return
        self._num_on_trial = len(self._seats)
        for seat in self._seats:
            self._crew.begin(seat.number, self._serve_on_trial(seat))

    # The trial ------------------------------------------------------------------------------

    async def _serve_on_trial(self, seat: Seat) -> None:
        """The new one's run; if one of them fails, then the old one's."""
        try:
            await seat.new.run(seat.trial.handle)
            has_failed = self._failure is not None
            if has_failed:
                seat.take_back()
                self._crew.stages[seat.number] = seat.old
        finally:
            self._leave()
        if has_failed:
            if seat.trial.batch:
                await seat.old.handle(seat.trial.batch)
            await self._are_back.wait()
            await seat.old.run()

    def _leave(self) -> None:
        """One of them runs no more; when the last one has failed, the inbox is open again."""
        self._num_on_trial -= 1
        if not self._num_on_trial:
            self._is_decided.set()
            self._are_back.set()
            if self._failure is not None:
                self._crew.inbox.resume()

    def _fail(self, error: Exception) -> None:
        """At one batch: all of them step back at their next boundary."""
        self._failure = self._failure or error
        self._crew.inbox.pause()

    async def _judge(self) -> None:
        """Until the newcomers have failed, or are trusted."""
        begin_ns = perf_counter_ns()
        while not (self._is_decided.is_set() or self._is_enough((perf_counter_ns() - begin_ns) / 1e9)):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._is_decided.wait()
        for seat in self._seats:
            await seat.trial.end()
        if self._failure is not None:
            await self._are_back.wait()

    def _is_enough(self, seconds: float) -> bool:
        num_batches = sum(seat.trial.num_batches for seat in self._seats)
        bounds = self._bounds
        if seconds < bounds.trial_s:
            return False
        return num_batches >= bounds.trial_batches or seconds >= bounds.max_trial_s


def reason_of(error: BaseException) -> str:
    """In words, whatever was raised."""
    if isinstance(error, SwapRefused | TimeoutError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
