"""Rounds: both sides timed by turns (A B, B A, A B, ...), so that what drifts weighs on both alike."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import msgspec

from pipeline.bench.compare.ratio import Ratio, ratio_of
from pipeline.bench.compare.side import Input, Side, first_error
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
    """Of each side in each round."""
    told: Told = lambda done, total: None

    @property
    def trace_points(self) -> int:
        """Of a turn, those of requests included."""
        return 4096 + 16 * self.num_messages


@dataclass
class _Seat:
    """A side as it is timed."""

    side: Side
    stand: Stand
    feed: Feed
    rows_us: list[float] = field(default_factory=list)
    """Of each round."""
    medians_us: list[float] = field(default_factory=list)
    """Likewise."""
    services_us: list[float] = field(default_factory=list)

    async def turn(self, num_messages: int) -> None:
        """One round's part."""
        stand, feed = self.stand, self.feed
        num_rows, since_ns = feed.num_rows, stand.clock()
        await feed.send(stand, num_messages)
        while not stand.is_at_rest:  # noqa: ASYNC110 - handle() may go on past its answers, and tells nobody
            await asyncio.sleep(_REST_S)
        services_us = feed.services_us(stand, since_ns)
        if not services_us:
            raise StagelineError(f"{self.side} was sent nothing in a round: ask for fewer, or a shorter one")
        self.rows_us.append(sum(services_us) / (feed.num_rows - num_rows or len(services_us)))
        self.medians_us.append(median(services_us))
        self.services_us += services_us

    def cost(self) -> Cost:
        services_us = self.services_us
        return Cost(median(self.rows_us), quantile(services_us, 0.5), quantile(services_us, 0.99))


async def time_rounds(a: Side, b: Side, fed: Input, timing: Timing) -> Times:
    """Warm both up, then time them. Raises StageCrashed.

    Each round compares what the two took for the same messages. One rests while the other works; but a stage
    that owns a device is stopped at the end of its turn, for the other may need all of it.
    """
    seats = tuple(_Seat(side, side.stand(timing.trace_points), fed.timed()) for side in (a, b))
    has_device = any(DeviceReady in side.stage_class.gives for side in (a, b))
    try:
        await (_apart if has_device else _beside)(seats, fed, timing)
    except ConfigError:
        raise
    except Exception as error:  # it may be anything: the stage is what is tried here
        cause = first_error(error)
        raise StageCrashed(f"{a.stage} failed in a timed round: {cause!r}") from cause
    seat_a, seat_b = seats
    return Times(
        timing.rounds,
        timing.num_messages,
        seat_a.cost(),
        seat_b.cost(),
        _ratio(seat_a.rows_us, seat_b.rows_us),
        _ratio(seat_a.medians_us, seat_b.medians_us),
    )


def _ratio(a_us: list[float], b_us: list[float]) -> Ratio:
    return ratio_of([b / a for a, b in zip(a_us, b_us, strict=True)])


async def _beside(seats: tuple[_Seat, ...], fed: Input, timing: Timing) -> None:
    a, b = seats
    async with running(a.stand, a.feed), running(b.stand, b.feed):
        for seat in seats:
            await seat.feed.send(seat.stand, max(timing.num_messages, WARM_UP))
        for number in range(timing.rounds):
            for seat in _order(seats, number):
                await seat.turn(timing.num_messages)
            timing.told(number + 1, timing.rounds)


async def _apart(seats: tuple[_Seat, ...], fed: Input, timing: Timing) -> None:
    for number in range(timing.rounds):
        for seat in _order(seats, number):
            seat.stand, seat.feed = seat.side.stand(timing.trace_points), fed.timed()
            async with running(seat.stand, seat.feed):
                await seat.feed.send(seat.stand, WARM_UP)
                await seat.turn(timing.num_messages)
        timing.told(number + 1, timing.rounds)


def _order(seats: tuple[_Seat, ...], number: int) -> tuple[_Seat, ...]:
    return seats if number % 2 == 0 else seats[::-1]
