"""Swap: another stage in the place of one that runs, between two batches, and back if it fails.

    the newcomers start          while the others serve
    (the stage drains)           where the two have not the same State: requests wait until it knows nothing
    the inbox is paused          what is sent meanwhile waits in it; whoever is in handle() finishes his batch
    state moves                  import_state(export_state()), see runtime.handover
    the inbox is resumed         the newcomers serve, on trial (runtime.trial) where they are revocable
    the trial ends               the others are stopped; or the newcomers are, and the others serve again

A drain may begin at any time but while state moves, and finds whoever serves then.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from time import perf_counter_ns

from pipeline.errors import SwapRefused
from pipeline.runtime.emptied import emptied
from pipeline.runtime.handover import Seat, check_states, class_path, have_same_state, held, knows_nothing
from pipeline.runtime.hold import Hold
from pipeline.runtime.patience import within
from pipeline.runtime.stage import NoState, StageContext
from pipeline.runtime.supervisor import AnyStage, Crew, Supervisor
from pipeline.runtime.swapped import USUAL, Bounds, Ending, Swapped, reason_of
from pipeline.runtime.trial import Trial

MakeStage = Callable[[StageContext], AnyStage]
STOPPING = "the server is stopping"
_LOOK_S = 0.05


async def swap(
    supervisor: Supervisor,
    crew: Crew,
    make: MakeStage,
    ctx: StageContext,
    bounds: Bounds = USUAL,
    doors: Sequence[Crew] = (),
) -> Swapped:
    """Put what `make` makes in the place of the crew's stages; returns when it is decided.

    Whoever waits for it may be cancelled: the swap goes on.

    Args:
        ctx: that of the stages, with nothing held.
        doors: where requests wait while the crew drains.
    """
    task = crew.beside(_attempt(_Swap(supervisor, crew, bounds, doors), make, ctx))
    await asyncio.wait([task])
    return Swapped(Ending.REFUSED, STOPPING) if task.cancelled() else task.result()


async def _attempt(this: "_Swap", make: MakeStage, ctx: StageContext) -> Swapped:
    if this.supervisor.swapping.locked():
        return Swapped(Ending.REFUSED, "another swap is under way")
    async with this.supervisor.swapping:
        try:
            return await this.run(make, ctx)
        except Exception as error:
            return Swapped(Ending.REFUSED, reason_of(error))
        finally:
            await this.stop_those_aside()


class _Swap:
    """One swap, from the start of the newcomers to the end of their trial."""

    def __init__(self, supervisor: Supervisor, crew: Crew, bounds: Bounds, doors: Sequence[Crew]) -> None:
        self.supervisor = supervisor
        self._crew = crew
        self._bounds = bounds
        self._doors = doors
        self._seats: list[Seat] = []
        self._num_on_trial = 0
        self._failure: Exception | None = None
        self._is_decided = asyncio.Event()
        self._are_back = asyncio.Event()

    async def run(self, make: MakeStage, ctx: StageContext) -> Swapped:
        """Raises SwapRefused, with the crew as it was."""
        for number, old in enumerate(self._crew.stages):
            await self._start(number, old, make, ctx)
        async with self.supervisor.changing, self._drained():
            paused_ns = await self._hand_over()
        if self._is_revocable:
            await self._judge()
        num_batches = sum(seat.trial.num_batches for seat in self._seats)
        if self._failure is None:
            return Swapped(Ending.SWAPPED, "", paused_ns, num_batches)
        return Swapped(Ending.ROLLED_BACK, reason_of(self._failure), paused_ns, num_batches)

    async def stop_those_aside(self) -> None:
        """Nobody holds on to them: the tasks of those who serve last for long."""
        for seat in self._seats:
            serving = self._crew.stages[seat.number]
            aside = seat.new if serving is seat.old else seat.old
            seat.old = seat.new = serving
            try:
                await aside.stop()
            except Exception:
                aside.ctx.log.exception("did not stop cleanly", part=class_path(type(aside)))

    @property
    def _is_revocable(self) -> bool:
        return self._moves_state and self._seats[0].new.is_revocable

    @property
    def _moves_state(self) -> bool:
        return have_same_state(type(self._seats[0].old), type(self._seats[0].new))

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

    def _drained(self) -> AbstractAsyncContextManager[None]:
        """Where state cannot move: while there is none."""
        if self.supervisor.is_draining or self._crew.inbox.is_closed:
            raise SwapRefused(STOPPING)
        if self._moves_state:
            return nullcontext()
        olds = [seat.old for seat in self._seats]
        return emptied(olds, self._doors, self.supervisor, self._bounds.drain_s)

    async def _hand_over(self) -> int:
        """For how long nobody took from the inbox, ns. Raises SwapRefused, with the others serving."""
        crew, begin_ns = self._crew, perf_counter_ns()
        crew.inbox.pause()
        try:
            await self._reach_boundary()
            self._check_drained()
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
                for seat in self._seats:
                    if seat.old.State is NoState:
                        await seat.old.drain()
        except TimeoutError as error:
            raise SwapRefused(f"the stage was not between two batches within {seconds:g} s") from error

    def _check_drained(self) -> None:
        if not (self._moves_state or all(knows_nothing(seat.old) for seat in self._seats)):
            raise SwapRefused("requests came while it was handed over")

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
