"""When each row that starts by the clock is due: pure functions of the recorded times and a seed.

A form is either recorded times (`trace`, `scale=X`), which keep the shape of bursts; or drawn ones (`rate`,
`poisson`, `gamma`, `onoff`), which keep only the order of the rows; or no times at all (`closed`). All
times are seconds after the start of the run; rates are requests per second.
"""

import math
import random
from collections.abc import Callable, Iterator
from itertools import accumulate, islice

import msgspec

from loadgen.errors import UsageError

FORMS = {
    "trace": "as recorded",
    "scale=X": "as recorded, every gap divided by X: bursts keep their shape",
    "rate=R": "R requests/s, all gaps the same",
    "poisson=R": "R requests/s on average, exponential gaps",
    "gamma=R,CV": "gamma gaps; CV is their deviation / mean: 1 is poisson, more is bursty",
    "onoff=R1,R2,ON_S,OFF_S": "poisson at R1 for ON_S s on average, then at R2 for OFF_S s, and so on",
    "closed=N": "no clock: N users, each begins the next session or row when its last ended",
    "closed": "sessions begin as recorded; in them answers and think times alone decide",
}


class Scale(msgspec.Struct, frozen=True, tag="scale"):
    """Recorded times, every gap divided by `speed`."""

    speed: float = 1.0

    def __str__(self) -> str:
        return "trace" if self.speed == 1 else f"scale={self.speed:g}"


class Renewal(msgspec.Struct, frozen=True, tag="renewal"):
    """Independent gaps of mean 1 / `rate`, of a gamma law with this coefficient of variation; 0 is a grid."""

    rate: float
    cv: float

    def __str__(self) -> str:
        names = {0.0: f"rate={self.rate:g}", 1.0: f"poisson={self.rate:g}"}
        return names.get(self.cv, f"gamma={self.rate:g},{self.cv:g}")


class OnOff(msgspec.Struct, frozen=True, tag="onoff"):
    """A Poisson process whose rate switches between two values, after exponential times."""

    rate_on: float
    rate_off: float
    on_s: float
    off_s: float

    def __str__(self) -> str:
        return f"onoff={self.rate_on:g},{self.rate_off:g},{self.on_s:g},{self.off_s:g}"


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """`num_users` sessions at a time, whatever the clock says; None: each begins when it was recorded."""

    num_users: int | None = None

    def __str__(self) -> str:
        return "closed" if self.num_users is None else f"closed={self.num_users}"


Timing = Scale | Renewal | OnOff | Closed


class Ramp(msgspec.Struct, frozen=True):
    """The rate is multiplied by a factor that goes from `first` to `last` in a line over the run."""

    first: float
    last: float

    def __str__(self) -> str:
        return f"{self.first:g}:{self.last:g}"


def parse_timing(text: str) -> Timing:
    """One of FORMS.

    Raises:
        UsageError: it is none of them; the message has the value and what is allowed.
    """
    name, equals, rest = text.partition("=")
    try:
        numbers = [float(part) for part in rest.split(",")] if equals else []
        return _timing(name, numbers)
    except (ValueError, TypeError, OverflowError) as error:
        allowed = "; ".join(f"{form} ({what})" for form, what in FORMS.items())
        raise UsageError(f"--timing {text}: cannot be used. Allowed: {allowed}") from error


def parse_ramp(text: str) -> Ramp:
    """`FROM:TO`. Raises UsageError if it is not."""
    first, _, last = text.partition(":")
    try:
        ramp = Ramp(float(first), float(last))
    except ValueError:
        ramp = Ramp(-1.0, -1.0)
    if not (0 <= ramp.first < math.inf and 0 < ramp.last < math.inf):
        raise UsageError(
            f"--ramp {text}: expected FROM:TO, two factors of the rate, FROM 0 or more, TO over 0"
        )
    return ramp


def drawn_s(timing: Renewal | OnOff, count: int, ramp: Ramp | None, seed: int) -> list[float]:
    """`count` due times in order, the first 0."""
    rng = random.Random(f"timing:{seed}")
    if isinstance(timing, OnOff):
        times = list(islice(_on_off(timing, rng), count))
        return [at - times[0] for at in times]
    steps = list(accumulate((_unit_gap(timing.cv, rng) for _ in range(count - 1)), initial=0.0))
    if ramp is None:
        return [step / timing.rate for step in steps]
    return [_ramped(step, count - 1, ramp) / timing.rate for step in steps]


def _timing(name: str, numbers: list[float]) -> Timing:
    """Raises TypeError for a wrong number of values, ValueError for wrong values or an unknown name."""
    if name == "closed":
        return Closed(*map(_users, numbers))
    if name not in _KINDS:
        raise ValueError(name)
    for place, number in enumerate(numbers):
        may_be_0 = name == "onoff" and place == _OFF_RATE
        if not (0 < number < math.inf or (number == 0 and may_be_0)):
            raise ValueError(number)
    return _KINDS[name](*numbers)


_KINDS: dict[str, Callable[..., Timing]] = {
    "trace": lambda: Scale(),
    "scale": lambda speed: Scale(speed),
    "rate": lambda rate: Renewal(rate, 0.0),
    "poisson": lambda rate: Renewal(rate, 1.0),
    "gamma": lambda rate, cv: Renewal(rate, cv),
    "onoff": OnOff,
}
_OFF_RATE = 1
"""Place of the one number that may be 0."""


def _users(number: float) -> int:
    if not number.is_integer() or number < 1:
        raise ValueError(number)
    return int(number)


def _unit_gap(cv: float, rng: random.Random) -> float:
    """Of mean 1. A gamma law of shape k has the coefficient of variation 1 / sqrt(k)."""
    if cv == 0:
        return 1.0
    shape = 1 / cv**2
    return rng.gammavariate(shape, 1 / shape)


def _ramped(step: float, total: float, ramp: Ramp) -> float:
    """The time x at which the integral of the ramped rate is `step`, where the plain rate is 1.

    The run lasts as long as the mean rate needs for `total`. What is drawn past its end keeps the last rate.
    """
    span = 2 * total / (ramp.first + ramp.last)
    if step >= total:
        return span + (step - total) / ramp.last
    slope = (ramp.last - ramp.first) / span  # first * x + slope / 2 * x^2 = step
    return 2 * step / (ramp.first + math.sqrt(ramp.first**2 + 2 * slope * step)) if step else 0.0


def _on_off(timing: OnOff, rng: random.Random) -> Iterator[float]:
    """Arrivals from any moment on; the first state is drawn by how long each lasts."""
    is_on = rng.random() < timing.on_s / (timing.on_s + timing.off_s)
    begin_s = 0.0
    while True:
        rate, mean_s = (timing.rate_on, timing.on_s) if is_on else (timing.rate_off, timing.off_s)
        end_s = begin_s + rng.expovariate(1 / mean_s)
        at_s = begin_s
        while rate and (at_s := at_s + rng.expovariate(rate)) < end_s:
            yield at_s
        begin_s, is_on = end_s, not is_on
