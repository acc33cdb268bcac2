"""What clients do to a server besides asking: all off by default, drawn per request from the run's seed.

A request's draws depend on the seed and its index alone, so that a run can be repeated, and switching one
behaviour on changes no draw of another.
"""

import math
import random

import msgspec

from loadgen.errors import UsageError


class Patience(msgspec.Struct, frozen=True):
    """How long a client waits for the first token, from the intended time: lognormal.

    An answer that has begun is read to its end: people leave queues, not answers.
    """

    median_s: float
    sigma: float = 0.5
    """Standard deviation of the logarithm; 0: all wait for the median."""


class SlowReader(msgspec.Struct, frozen=True):
    """With probability `share`, a request's bytes are read no faster than this."""

    share: float
    bytes_per_s: float


class Pause(msgspec.Struct, frozen=True):
    """With probability `share`, reading stops for so long, after a uniform part of the wanted tokens."""

    share: float
    seconds: float


class Conduct(msgspec.Struct, frozen=True):
    """What one request's client will do. None and False: nothing."""

    patience_s: float | None = None
    cancel_after: int | None = None
    """Tokens; at the first frame that reaches them the client ends the answer."""
    bytes_per_s: float | None = None
    pause_after: int | None = None
    """Tokens."""
    pause_s: float = 0.0
    reconnects: bool = False

    @property
    def reads_oddly(self) -> bool:
        """Such a request has a connection of its own, with a small receive buffer."""
        return self.bytes_per_s is not None or self.pause_after is not None


PLAIN = Conduct()


class Behaviours(msgspec.Struct, frozen=True):
    """Of all clients of a run."""

    patience: Patience | None = None
    cancel: float = 0.0
    """Probability to end an answer after a uniform part of the wanted tokens."""
    slow_reader: SlowReader | None = None
    pause: Pause | None = None
    reconnect: bool = False
    """One more try after a refusal or a lost connection, if no token had come."""

    def of(self, index: int, num_output: int, seed: int) -> Conduct:
        """The conduct of request `index`, which wants `num_output` tokens."""
        if self == _NONE:
            return PLAIN
        rng = random.Random(f"conduct:{seed}:{index}")
        wait, cancel, cancel_at, slow, pause, pause_at = rng.gauss(0, 1), *(rng.random() for _ in range(5))
        pauses = self.pause is not None and pause < self.pause.share
        return Conduct(
            None if self.patience is None else self.patience.median_s * math.exp(self.patience.sigma * wait),
            _token(cancel_at, num_output) if cancel < self.cancel else None,
            self.slow_reader.bytes_per_s if self.slow_reader and slow < self.slow_reader.share else None,
            _token(pause_at, num_output) if pauses else None,
            self.pause.seconds if self.pause and pauses else 0.0,
            self.reconnect,
        )


_NONE = Behaviours()


def parse_patience(text: str) -> Patience:
    """`MEDIAN_S[,SIGMA]`. Raises UsageError if it is not."""
    median_s, *sigma = numbers = _numbers(text)
    if not (0 < median_s < math.inf and len(numbers) <= 2 and all(0 <= number < 10 for number in sigma)):
        raise UsageError(f"--patience {text}: expected MEDIAN_S[,SIGMA], the median over 0, sigma 0 to 10")
    return Patience(*numbers)


def parse_cancel(text: str) -> float:
    """A probability. Raises UsageError if it is not."""
    numbers = _numbers(text)
    if len(numbers) != 1 or not 0 <= numbers[0] <= 1:
        raise UsageError(f"--cancel {text}: expected a probability, 0 to 1")
    return numbers[0]


def parse_slow_reader(text: str) -> SlowReader:
    """`P,BYTES_PER_S`. Raises UsageError if it is not."""
    return SlowReader(*_share_and(text, "--slow-reader", "BYTES_PER_S"))


def parse_pause(text: str) -> Pause:
    """`P,SECONDS`. Raises UsageError if it is not."""
    return Pause(*_share_and(text, "--pause", "SECONDS"))


def _share_and(text: str, option: str, second: str) -> list[float]:
    numbers = _numbers(text)
    if len(numbers) != 2 or not (0 <= numbers[0] <= 1 and 0 < numbers[1] < math.inf):
        raise UsageError(f"{option} {text}: expected P,{second}, P from 0 to 1, {second} over 0")
    return numbers


def _numbers(text: str) -> list[float]:
    """[nan] if they are none."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return [math.nan]


def _token(part: float, num_output: int) -> int:
    """A token before the last, if there is one, at this part of the answer."""
    return 1 + int(part * (num_output - 1))
