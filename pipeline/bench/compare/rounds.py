"""Rounds: both sides timed by turns (A B, B A, A B, ...), so that what drifts weighs on both alike."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, TypeVar

import msgspec

from pipeline.bench.compare.input import Input
from pipeline.bench.compare.ratio import MIN_ROUNDS, Ratio, ratio_of
from pipeline.bench.compare.side import Side, reason_of
from pipeline.bench.measure import quantile
from pipeline.bench.stand import WARM_UP, Feed, Stand, running
from pipeline.errors import ConfigError, StageCrashed, StagelineError
from pipeline.messages import DeviceReady

T = TypeVar("T")
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
    keeps_devices: bool = False
    """Both devices stay open: there is memory for both."""
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


_Round = tuple[_Turn, _Turn]
_Pair = tuple[Side, Side]


@dataclass
class _Seat:
    """A side on a stand of its own."""

    stand: Stand
    feed: Feed

    @classmethod
    def of(cls, side: Side, fed: Input, timing: Timing) -> "_Seat":
        return cls(side.stand(timing.trace_points), fed.timed())

    async def turn(self, num_messages: int) -> _Turn:
        stand, feed = self.stand, self.feed
        num_rows, since_ns = feed.num_rows, stand.clock()
        await feed.send(stand, num_messages)
        while not stand.is_at_rest:  # noqa: ASYNC110 - handle() may go on past its answers, and tells nobody
            await asyncio.sleep(_REST_S)
        return _Turn(feed.services_us(stand, since_ns), feed.num_rows - num_rows)


async def time_rounds(a: Side, b: Side, fed: Input, timing: Timing) -> Times:
    """Warm both up, then time them. Raises StageCrashed, and StagelineError if there is too little to send.

    Each round compares what the two took for the same messages. One rests while the other works; but a stage
    that owns a device is stopped at the end of its turn, unless told not to: the other may need all of it.
    """
    has_device = any(DeviceReady in side.stage_class.gives for side in (a, b))
    is_apart = fed.is_one_piece or (has_device and not timing.keeps_devices)
    timing = _within(fed, timing, is_apart=is_apart)
    try:
        rounds = await (_apart if is_apart else _beside)((a, b), fed, timing)
    except ConfigError:
        raise
    except Exception as error:  # it may be anything: the stage is what is tried here
        raise StageCrashed(f"{a.stage} failed in a timed round: {reason_of(error)}") from error
    return _times(rounds, timing.num_messages)


def _within(fed: Input, timing: Timing, *, is_apart: bool) -> Timing:
    """No more than there is to send: those beside one another go through it once, warming up with a round;
    those apart begin at the beginning each time.
    """
    if fed.num_messages is None:
        return timing if is_apart else replace(timing, num_warm=max(timing.num_messages, timing.num_warm))
    if is_apart:
        both = fed.part(timing.num_messages + timing.num_warm, 1)
        num_warm = min(timing.num_warm, both // 2)
        return replace(timing, num_messages=both - num_warm, num_warm=num_warm)
    part = fed.part(timing.num_messages, timing.rounds + 1)
    return replace(timing, num_messages=part, num_warm=part)


async def _beside(sides: _Pair, fed: Input, timing: Timing) -> list[_Round]:
    a, b = seats = [_Seat.of(side, fed, timing) for side in sides]
    rounds: list[_Round] = []
    async with running(a.stand, a.feed), running(b.stand, b.feed):
        for seat in seats:
            await seat.feed.send(seat.stand, timing.num_warm)
        for number in range(timing.rounds):
            turns = [await seat.turn(timing.num_messages) for seat in _in_turn(seats, number)]
            rounds.append(_as_round(turns, number))
            timing.told(number + 1, timing.rounds)
    return rounds


async def _apart(sides: _Pair, fed: Input, timing: Timing) -> list[_Round]:
    rounds: list[_Round] = []
    for number in range(timing.rounds):
        turns: list[_Turn] = []
        for side in _in_turn(sides, number):
            seat = _Seat.of(side, fed, timing)
            async with running(seat.stand, seat.feed):
                await seat.feed.send(seat.stand, timing.num_warm)
                turns.append(await seat.turn(timing.num_messages))
        rounds.append(_as_round(turns, number))
        timing.told(number + 1, timing.rounds)
    return rounds


def _in_turn(pair: Sequence[T], number: int) -> Sequence[T]:
    """A B, B A, A B, ..."""
    return pair[::-1] if number % 2 else pair


def _as_round(turns: Sequence[_Turn], number: int) -> _Round:
    a, b = _in_turn(turns, number)
    return a, b


def _times(all_rounds: list[_Round], num_messages: int) -> Times:
    """Of the rounds in which both were sent something: a recording is sent by whole batches, and may end."""
    rounds = [each for each in all_rounds if all(turn.services_us for turn in each)]
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


def _cost(turns: tuple[_Turn, ...]) -> Cost:
    services_us = [service_us for turn in turns for service_us in turn.services_us]
    return Cost(
        median(turn.row_us for turn in turns), quantile(services_us, 0.5), quantile(services_us, 0.99)
    )
