"""Rounds: both sides timed by turns (A B, B A, A B, ...), so that what drifts weighs on both alike."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

import msgspec

from pipeline.bench.compare.input import Input
from pipeline.bench.compare.ratio import MIN_ROUNDS, Ratio, ratio_of
from pipeline.bench.compare.side import Side, first_error
from pipeline.bench.measure import quantile
from pipeline.bench.stand import WARM_UP, Feed, Stand, running
from pipeline.errors import ConfigError, StageCrashed, StagelineError
from pipeline.messages import DeviceReady

_REST_S = 0.001
Told = Callable[[int, int], None]
"""So many rounds of so many are done."""


class Cost(msgspec.Struct, frozen=True):
    """What one side takes. In handle(), or of execute on the device."""

    row_us: float
    """Per row (a request, for tokenize); per message where these have none. The median of the rounds."""
    p50_us: float
    """Per message, all rounds together."""
    p99_us: float


class Times(msgspec.Struct, frozen=True):
    rounds: int
    messages: int
    """Of each side in each round; of schedule and execute, plans."""
    a: Cost
    b: Cost
    ratio: Ratio
    """Of the time per row."""
    median_ratio: Ratio
    """Of the rounds' median messages: nearly the same, unless some take far longer than most, as they do
    where the process is put aside."""


@dataclass(frozen=True)
class Timing:
    """How both are timed."""

    rounds: int
    num_messages: int
    """Of each side in each round,"""
    num_warm: int = WARM_UP
    """and before the first, at least."""
    told: Told = lambda done, total: None

    @property
    def trace_points(self) -> int:
        """Of a turn, those of requests included."""
        return 4096 + 16 * max(self.num_messages, self.num_warm)


class _Turn(NamedTuple):
    """One side's part of a round."""

    services_us: list[float]
    num_rows: int

    @property
    def row_us(self) -> float:
        return sum(self.services_us) / (self.num_rows or len(self.services_us))


@dataclass
class _Seat:
    """A side as it is timed."""

    side: Side
    stand: Stand
    feed: Feed
    turns: list[_Turn] = field(default_factory=list)

    async def turn(self, num_messages: int) -> None:
        stand, feed = self.stand, self.feed
        num_rows, since_ns = feed.num_rows, stand.clock()
        await feed.send(stand, num_messages)
        while not stand.is_at_rest:  # noqa: ASYNC110 - handle() may go on past its answers, and tells nobody
            await asyncio.sleep(_REST_S)
        self.turns.append(_Turn(feed.services_us(stand, since_ns), feed.num_rows - num_rows))


async def time_rounds(a: Side, b: Side, fed: Input, timing: Timing) -> Times:
    """Warm both up, then time them. Raises StageCrashed, and StagelineError if there is too little to send.

    Each round compares what the two took for the same messages. One rests while the other works; but a stage
    that owns a device is stopped at the end of its turn, for the other may need all of it.
    """
    is_apart = fed.is_one_piece or any(DeviceReady in side.stage_class.gives for side in (a, b))
    timing = _within(fed, timing, is_apart=is_apart)
    seats = tuple(_Seat(side, side.stand(timing.trace_points), fed.timed()) for side in (a, b))
    try:
        await (_apart if is_apart else _beside)(seats, fed, timing)
    except ConfigError:
        raise
    except Exception as error:  # it may be anything: the stage is what is tried here
        cause = first_error(error)
        raise StageCrashed(f"{a.stage} failed in a timed round: {cause!r}") from cause
    return _times(seats, timing.num_messages)


def _within(fed: Input, timing: Timing, *, is_apart: bool) -> Timing:
    """No more than there is to send. Those beside one another go through it once; those apart begin at the
    beginning each time.
    """
    if is_apart:
        both = fed.part(timing.num_messages + timing.num_warm, 1)
        num_warm = min(timing.num_warm, both // 2)
        return replace(timing, num_messages=both - num_warm, num_warm=num_warm)
    part = fed.part(timing.num_messages, timing.rounds + 1)
    is_bounded = fed.num_messages is not None
    return replace(timing, num_messages=part, num_warm=part if is_bounded else max(part, timing.num_warm))


async def _beside(seats: tuple[_Seat, ...], fed: Input, timing: Timing) -> None:
    a, b = seats
    async with running(a.stand, a.feed), running(b.stand, b.feed):
        for seat in seats:
            await seat.feed.send(seat.stand, timing.num_warm)
        for number in range(timing.rounds):
            for seat in _order(seats, number):
                await seat.turn(timing.num_messages)
            timing.told(number + 1, timing.rounds)


async def _apart(seats: tuple[_Seat, ...], fed: Input, timing: Timing) -> None:
    for number in range(timing.rounds):
        for seat in _order(seats, number):
            seat.stand, seat.feed = seat.side.stand(timing.trace_points), fed.timed()
            async with running(seat.stand, seat.feed):
                await seat.feed.send(seat.stand, timing.num_warm)
                await seat.turn(timing.num_messages)
        timing.told(number + 1, timing.rounds)


def _order(seats: tuple[_Seat, ...], number: int) -> tuple[_Seat, ...]:
    return seats if number % 2 == 0 else seats[::-1]


def _times(seats: tuple[_Seat, ...], num_messages: int) -> Times:
    """Of the rounds in which both were sent something: a recording is sent by whole batches, and may end."""
    rounds = [pair for pair in zip(*(seat.turns for seat in seats), strict=True) if all(map(_has_any, pair))]
    if len(rounds) < MIN_ROUNDS:
        raise StagelineError(
            f"only {len(rounds)} rounds had messages: {MIN_ROUNDS} must; ask for fewer in each"
        )
    a, b = zip(*rounds, strict=True)
    return Times(
        len(rounds),
        num_messages,
        _cost(a),
        _cost(b),
        ratio_of([ours.row_us / theirs.row_us for theirs, ours in rounds]),
        ratio_of([median(ours.services_us) / median(theirs.services_us) for theirs, ours in rounds]),
    )


def _has_any(turn: _Turn) -> bool:
    return bool(turn.services_us)


def _cost(turns: tuple[_Turn, ...]) -> Cost:
    services_us = [service_us for turn in turns for service_us in turn.services_us]
    return Cost(
        median(turn.row_us for turn in turns), quantile(services_us, 0.5), quantile(services_us, 0.99)
    )
