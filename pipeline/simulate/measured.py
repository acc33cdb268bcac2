"""Measured: what a step costs on a machine that was measured, and what its host adds; measured.json."""

from bisect import bisect_right
from itertools import pairwise
from pathlib import Path

import msgspec

from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady
from pipeline.simulate.host import HostCosts
from pipeline.simulate.work import StepWork

VERSION = 1


class StepTerms(msgspec.Struct, frozen=True):
    """step_ns = base(T) + per_row R + per_kv K + per_attended (A - K): see work.StepWork.

    base is piecewise linear in the step's tokens: (tokens, ns), ascending; past the last knot it goes on as
    its last piece does.
    """

    base: tuple[tuple[int, float], ...]
    per_row: float
    per_kv: float
    per_attended: float


class Residual(msgspec.Struct, frozen=True):
    """How far the fit is from the steps it was made of, relative to each step's time."""

    num_steps: int
    median: float
    p90: float
    mean: float
    """Signed: above 0 the fit says too much."""


class Measured(msgspec.Struct, frozen=True):
    version: int
    name: str
    """Model, device and machine, for people."""
    source: str
    """`bench` or `evidence`."""
    ready: DeviceReady
    max_model_len: int
    step: StepTerms
    host: HostCosts
    residual: Residual


class MeasuredCost:
    """Implements work.Cost."""

    def __init__(self, terms: StepTerms) -> None:
        self._terms = terms
        self._knots = [tokens for tokens, _ in terms.base]
        self._pieces = _pieces(terms.base)

    def step_ns(self, work: StepWork) -> int:
        num_tokens, num_rows, _, num_kv, num_attended = work
        terms = self._terms
        first_ns = self._base(num_tokens) + terms.per_row * num_rows
        first_ns += terms.per_attended * (num_attended - num_kv)
        return int(first_ns + terms.per_kv * num_kv)

    def decode_ns(self, num_rows: int) -> tuple[float, float]:
        return self._base(num_rows) + self._terms.per_row * num_rows, self._terms.per_kv

    def _base(self, num_tokens: int) -> float:
        if not self._pieces:
            return self._terms.base[0][1]
        place = min(max(bisect_right(self._knots, num_tokens) - 1, 0), len(self._pieces) - 1)
        start, value, slope = self._pieces[place]
        return max(0.0, value + slope * (num_tokens - start))


def _pieces(base: tuple[tuple[int, float], ...]) -> list[tuple[int, float, float]]:
    """(tokens, ns, ns per token) from each knot to the next."""
    return [(left, low, (high - low) / (right - left)) for (left, low), (right, high) in pairwise(base)]


def read_measured(path: Path) -> Measured:
    """Raises ConfigError if it is no such file."""
    try:
        measured = msgspec.json.decode(path.read_bytes(), type=Measured)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not what `stageline bench execute --fit` writes: {error}") from error
    if measured.version != VERSION or not measured.step.base:
        raise ConfigError(f"{path}: is of version {measured.version}; this Stageline reads {VERSION}")
    return measured


def encode(measured: Measured) -> bytes:
    return msgspec.json.format(msgspec.json.encode(measured))
