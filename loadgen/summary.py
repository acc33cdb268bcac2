"""A run in numbers. Pure: from records to a Summary, which is also what result.json holds."""

from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np

from loadgen.record import Record
from loadgen.slo import Slo

MAX_LATENESS_S = 0.010
MAX_LATENESS_OF_GAP = 0.01
MAX_LAG_S = 0.005


class Spread(msgspec.Struct, frozen=True):
    """Of a sample, in milliseconds; percentiles interpolate linearly."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


class Lengths(msgspec.Struct, frozen=True):
    """Tokens of the finished requests: as the trace wants them, and as the server counted them."""

    planned: int
    actual: int
    num_off: int
    """Requests whose actual length is not the planned one."""


class Goodput(msgspec.Struct, frozen=True):
    """Requests that keep every limit, of different wholes, so that shedding can neither hide nor help."""

    slo: Slo
    num_met: int
    attained_pct: float
    """num_met of the requests that the server took and the client did not end: a failure is a miss."""
    offered_pct: float
    """num_met of all requests sent: one that was shed, or whose client lost patience, is a miss too."""
    shed_pct: float
    """Turned away (429, 503), of all sent."""
    requests_per_s: float
    """num_met over the wall time."""
    broken: list[str]
    """Limits that the SLO's percentile is over, in words; empty if it holds or names no percentile."""


class Summary(msgspec.Struct, frozen=True):
    num_planned: int
    num_sent: int
    num_finished: int
    num_abandoned: int
    """Ended by their clients, out of patience."""
    num_cancelled: int
    """Ended by their clients, as planned."""
    num_shed: int
    """Of the failures, those the server turned away (429, 503)."""
    failures: dict[str, int]
    failure_examples: dict[str, str]
    """The first message of each reason."""
    wall_s: float
    """First intended send to the last end of a request."""
    input: Lengths
    output: Lengths
    num_without_usage: int
    """Finished requests without usage: their output tokens are their frames."""
    input_tokens_per_s: float
    output_tokens_per_s: float
    """Of finished requests, over the wall time."""
    requests_per_s: float
    ttft: Spread | None
    """From the due time (corrected), as is `e2e`; the raw ones count from the time really sent."""
    raw_ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    raw_e2e: Spread | None
    lateness: Spread | None
    loop_lag: Spread | None
    cpu_pct: float | None
    """CPU time of the generator, in % of one core over the wall time."""
    client_bound: list[str]
    """Why the generator, and not the server, may have set these numbers; empty if it has not."""
    goodput: Goodput | None


def summarise(
    records: list[Record],
    num_planned: int,
    mean_gap_s: float | None,
    lags_s: list[float],
    slo: Slo | None,
    cpu_s: float | None = None,
) -> Summary:
    """`records` of the requests that were sent, all ended; latencies are of the finished ones.

    Args:
        cpu_s: CPU time of the generator during the run.
    """
    finished = [record for record in records if record.is_finished]
    left = [record for record in records if record.ended_by == "client"]
    failures = [record.failure for record in records if record.failure is not None]
    wall_s = max((record.closed_s or 0.0 for record in records), default=0.0)
    lateness, lag = spread(record.lateness_s for record in records), spread(lags_s)
    input_, output = _input(finished), _output(finished)
    return Summary(
        num_planned=num_planned,
        num_sent=len(records),
        num_finished=len(finished),
        num_abandoned=sum(record.abandoned for record in left),
        num_cancelled=sum(not record.abandoned for record in left),
        num_shed=sum(failure.is_shed for failure in failures),
        failures=dict(Counter(failure.reason for failure in failures).most_common()),
        failure_examples={failure.reason: failure.message for failure in reversed(failures)},
        wall_s=wall_s,
        input=input_,
        output=output,
        num_without_usage=sum(record.output_tokens is None for record in finished),
        input_tokens_per_s=_rate(input_.actual, wall_s),
        output_tokens_per_s=_rate(output.actual, wall_s),
        requests_per_s=_rate(len(finished), wall_s),
        ttft=spread(record.ttft_s for record in finished),
        raw_ttft=spread(record.raw_ttft_s for record in finished),
        itl=spread(gap for record in finished for gap in record.itl_s),
        tpot=spread(record.tpot_s for record in finished),
        e2e=spread(record.e2e_s for record in finished),
        raw_e2e=spread(record.raw_e2e_s for record in finished),
        lateness=lateness,
        loop_lag=lag,
        cpu_pct=None if cpu_s is None else 100 * _rate(cpu_s, wall_s),
        client_bound=_client_bound(lateness, lag, mean_gap_s),
        goodput=None if slo is None else _goodput(records, slo, wall_s),
    )


def spread(values_s: Iterable[float | None]) -> Spread | None:
    """Of the values that exist, in seconds; None if none does."""
    values_ms = np.array([value for value in values_s if value is not None]) * 1000
    if not values_ms.size:
        return None
    p50, p90, p99 = np.percentile(values_ms, (50, 90, 99)).tolist()
    return Spread(values_ms.size, float(values_ms.mean()), p50, p90, p99, float(values_ms.max()))


def _input(finished: list[Record]) -> Lengths:
    """A given text has no planned length: what the server counted is its plan."""
    return _lengths([_planned_and_actual(record) for record in finished])


def _planned_and_actual(record: Record) -> tuple[int, int]:
    actual = (record.planned_input or 0) if record.input_tokens is None else record.input_tokens
    return actual if record.planned_input is None else record.planned_input, actual


def _output(finished: list[Record]) -> Lengths:
    return _lengths([(record.planned_output, record.num_output) for record in finished])


def _lengths(pairs: list[tuple[int, int]]) -> Lengths:
    planned, actual = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0)
    return Lengths(planned, actual, sum(a != b for a, b in pairs))


def _rate(count: float, wall_s: float) -> float:
    return count / wall_s if wall_s else 0.0


def _client_bound(lateness: Spread | None, lag: Spread | None, mean_gap_s: float | None) -> list[str]:
    reasons = []
    limit_ms = 1000 * max(MAX_LATENESS_S, MAX_LATENESS_OF_GAP * (mean_gap_s or 0.0))
    if lateness is not None and lateness.p99_ms > limit_ms:
        reasons.append(f"p99 lateness {lateness.p99_ms:.1f} ms is over {limit_ms:.1f} ms")
    if lag is not None and lag.p99_ms > 1000 * MAX_LAG_S:
        reasons.append(f"p99 loop lag {lag.p99_ms:.1f} ms is over {1000 * MAX_LAG_S:.1f} ms")
    return reasons


def _goodput(records: list[Record], slo: Slo, wall_s: float) -> Goodput:
    num_met = sum(slo.is_met(record) for record in records)
    num_shed = sum(record.failure is not None and record.failure.is_shed for record in records)
    num_taken = sum(record.ended_by == "server" for record in records) - num_shed
    return Goodput(
        slo=slo,
        num_met=num_met,
        attained_pct=_percent(num_met, num_taken),
        offered_pct=_percent(num_met, len(records)),
        shed_pct=_percent(num_shed, len(records)),
        requests_per_s=_rate(num_met, wall_s),
        broken=slo.broken(records),
    )


def _percent(count: int, whole: int) -> float:
    return 100 * count / whole if whole else 0.0
