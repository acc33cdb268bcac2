"""Rounds: both sides timed by turns (A B, B A, A B, ...), so that what drifts weighs on both alike."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import msgspec

from pipeline.bench.compare.ratio import Ratio, ratio_of
from pipeline.bench.compare.side import Input, Side
from pipeline.bench.measure import quantile
from pipeline.bench.stand import WARM_UP, Feed, Stand, running
from pipeline.errors import StageCrashed, StagelineError
from pipeline.messages import DeviceReady

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
    """Of row_us."""


@dataclass
class _Seat:
    """A side as it is timed."""

    side: Side
    stand: Stand
    feed: Feed
    rows_us: list[float] = field(default_factory=list)
    """Of each round."""
    services_us: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, side: Side, fed: Input) -> "_Seat":
        return cls(side, side.stand(), fed.timed())

    async def turn(self, num_messages: int) -> None:
        """One round's part."""
        feed, stand = self.feed, self.stand
        busy_ns, units = feed.busy_ns(stand), self._units()
        await feed.send(stand, num_messages)
        units = self._units() - units
        if not units:
            raise StagelineError(f"{self.side} was sent nothing in a round; ask for fewer rounds or messages")
        self.rows_us.append((feed.busy_ns(stand) - busy_ns) / units / 1e3)

    def _units(self) -> int:
        return self.feed.num_rows or sum(stage.service.num_messages for stage in self.stand.stages)

    def cost(self) -> Cost:
        services_us = self.services_us
        return Cost(median(self.rows_us), quantile(services_us, 0.5), quantile(services_us, 0.99))


async def time_rounds(a: Side, b: Side, fed: Input, rounds: int, num_messages: int, told: Told) -> Times:
    """Warm both up, then time them. Raises StageCrashed.

    Each round compares what the two took for the same messages. One rests while the other works; but a stage
    that owns a device is stopped at the end of its turn, for the other may need all of it.
    """
    has_device = any(DeviceReady in side.stage_class.gives for side in (a, b))
    try:
        seats = await (_apart if has_device else _beside)(a, b, fed, rounds, num_messages, told)
    except BaseExceptionGroup as group:
        error = _first(group)
        raise StageCrashed(f"{a.stage} failed in a timed round: {error!r}") from error
    seat_a, seat_b = seats
    ratios = [b_us / a_us for a_us, b_us in zip(seat_a.rows_us, seat_b.rows_us, strict=True)]
    return Times(rounds, num_messages, seat_a.cost(), seat_b.cost(), ratio_of(ratios))


async def _beside(
    a: Side, b: Side, fed: Input, rounds: int, num_messages: int, told: Told
) -> tuple[_Seat, _Seat]:
    seats = _Seat.of(a, fed), _Seat.of(b, fed)
    async with running(seats[0].stand, seats[0].feed), running(seats[1].stand, seats[1].feed):
        for seat in seats:
            await seat.feed.send(seat.stand, max(num_messages, WARM_UP))
        begun_ns = [seat.stand.clock() for seat in seats]
        for number in range(rounds):
            for seat in _order(seats, number):
                await seat.turn(num_messages)
            told(number + 1, rounds)
        for seat, since_ns in zip(seats, begun_ns, strict=True):
            seat.services_us = seat.feed.services_us(seat.stand, since_ns)
    return seats


async def _apart(
    a: Side, b: Side, fed: Input, rounds: int, num_messages: int, told: Told
) -> tuple[_Seat, _Seat]:
    seats = _Seat.of(a, fed), _Seat.of(b, fed)
    for number in range(rounds):
        for seat in _order(seats, number):
            seat.stand, seat.feed = seat.side.stand(), fed.timed()
            async with running(seat.stand, seat.feed):
                await seat.feed.send(seat.stand, WARM_UP)
                since_ns = seat.stand.clock()
                await seat.turn(num_messages)
                seat.services_us += seat.feed.services_us(seat.stand, since_ns)
        told(number + 1, rounds)
    return seats


def _order(seats: tuple[_Seat, _Seat], number: int) -> tuple[_Seat, _Seat]:
    return seats if number % 2 == 0 else (seats[1], seats[0])


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
