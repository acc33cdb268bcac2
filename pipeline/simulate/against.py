"""Against a measured run: the requests of a loadgen result.json, simulated, and how far that is off.

The requests are simulated as they were really sent, so that the generator's own lateness is in neither.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from pipeline.errors import ConfigError
from pipeline.simulate.figures import Figures, Quantiles
from pipeline.simulate.workload import NS_PER_S, Arrival, from_zero

AIM = 0.09
"""Vidur (Agrawal et al., MLSys 2024) states errors below this."""
STATISTICS = ("mean", "p50", "p90", "p99")


class _Request(msgspec.Struct):
    """Of loadgen's Record: what is needed here."""

    sent_s: float | None
    chunk_s: list[float]
    planned_output: int
    planned_input: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    failure: object = None
    ended_by: str = "server"


class _Result(msgspec.Struct):
    version: int
    requests: list[_Request]


class Finished(msgspec.Struct, frozen=True):
    """A request that was answered whole; seconds after the start of the run."""

    sent_s: float
    chunk_s: list[float]
    num_input: int
    num_output: int


class Comparison(msgspec.Struct, frozen=True):
    name: str
    """e.g. `TTFT p50, ms`."""
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative; above 0 the simulation says more."""
        return self.simulated / self.measured - 1 if self.measured else float("nan")


def read_result(path: Path) -> tuple[list[Finished], int]:
    """The finished requests of a run, and how many others there were. Raises ConfigError."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=_Result)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no result.json of loadgen: {error}") from error
    finished = [each for request in result.requests if (each := _finished(request)) is not None]
    if not finished:
        raise ConfigError(f"{path}: holds no request that was answered")
    return finished, len(result.requests) - len(finished)


def _finished(request: _Request) -> Finished | None:
    num_input = request.input_tokens or request.planned_input
    if request.failure is not None or request.ended_by != "server" or request.sent_s is None:
        return None
    if not request.chunk_s or not num_input:
        return None
    return Finished(
        request.sent_s, request.chunk_s, num_input, request.output_tokens or request.planned_output
    )


def workload_of(finished: Sequence[Finished]) -> list[Arrival]:
    return from_zero(
        [Arrival(int(each.sent_s * NS_PER_S), each.num_input, each.num_output) for each in finished]
    )


def compare(finished: Sequence[Finished], figures: Figures) -> list[Comparison]:
    """TTFT, ITL, TPOT, E2E and throughput, measured and simulated."""
    ttft = [each.chunk_s[0] - each.sent_s for each in finished]
    e2e = [each.chunk_s[-1] - each.sent_s for each in finished]
    tpot = [
        (each.chunk_s[-1] - each.chunk_s[0]) / (each.num_output - 1)
        for each in finished
        if each.num_output > 1
    ]
    gaps = [later - sooner for each in finished for sooner, later in pairwise(each.chunk_s)]
    begin, end = min(each.sent_s for each in finished), max(each.chunk_s[-1] for each in finished)
    num_tokens = sum(each.num_output for each in finished)
    return [
        *_compared("TTFT", ttft, figures.ttft_ms),
        *_compared("ITL", gaps, figures.itl_ms),
        *_compared("TPOT", tpot, figures.tpot_ms),
        *_compared("E2E", e2e, figures.e2e_ms),
        Comparison("output tokens/s", num_tokens / (end - begin), figures.output_tokens_per_s),
    ]


def _compared(name: str, seconds: Sequence[float], simulated: Quantiles) -> list[Comparison]:
    if not seconds:
        return []
    values = np.array(seconds) * 1e3
    measured = [float(values.mean()), *np.percentile(values, (50, 90, 99)).tolist()]
    return [
        Comparison(f"{name} {statistic}, ms", value, getattr(simulated, statistic))
        for statistic, value in zip(STATISTICS, measured, strict=True)
    ]
