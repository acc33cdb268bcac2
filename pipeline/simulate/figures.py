"""Figures: what a run has come to. Latencies count from the request's arrival, as a client sees them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.core.coalesce import FlushRule
from pipeline.simulate.delivery import writes_ns
from pipeline.simulate.fleet import Refusals
from pipeline.simulate.host import HostCosts
from pipeline.simulate.ledger import Ledger, Track
from pipeline.simulate.replica import Replica
from pipeline.simulate.slo import Slo
from pipeline.simulate.workload import NS_PER_S

MAX_STREAMS = 4000
"""Answers whose writes are looked at for ITL, evenly spaced over all of a replica."""

Times: TypeAlias = npt.NDArray[np.float64]


class Quantiles(msgspec.Struct, frozen=True):
    """Milliseconds; linear interpolation."""

    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class TenantFigures(msgspec.Struct, frozen=True):
    num_requests: int
    num_output_tokens: int
    ttft_ms: Quantiles
    e2e_ms: Quantiles


class Figures(msgspec.Struct, frozen=True):
    """One policy on so many replicas."""

    policy: str
    num_replicas: int
    rate: float
    """Requests/s that arrive, all replicas together."""
    num_requests: int
    num_finished: int
    rejected: dict[str, int]
    num_dropped: int
    """Taken in, and ended before their last token."""
    duration_s: float
    """From the first arrival to the last token."""
    num_input_tokens: int
    num_output_tokens: int
    ttft_ms: Quantiles
    itl_ms: Quantiles
    """Between two writes to a client, each of one or more tokens."""
    tpot_ms: Quantiles
    e2e_ms: Quantiles
    wait_ms: Quantiles
    """In the scheduler's queue, until first planned."""
    output_tokens_per_s: float
    requests_per_s: float
    goodput: float
    """Share of all requests that finished within the SLO (without one: that finished)."""
    goodput_per_s: float
    kv_mean: float
    """Share of the blocks' room that holds tokens, over time,"""
    kv_max: float
    """and at most."""
    running_mean: float
    """Sequences with a slot at once on a replica, over time,"""
    running_crowded: float
    """and while others waited; NaN if nobody did."""
    num_cached_tokens: int
    """Of the prompts, that were found in the prefix cache."""
    num_preemptions: int
    num_padding_tokens: int
    """What static batches would have computed for nothing."""
    num_steps: int
    device_busy: float
    """Share of the time that devices ran steps."""
    cost_per_million_tokens: float | None
    """US dollars, of output tokens; None: the device has no price."""
    by_tenant: dict[str, TenantFigures]
    """Where there are several."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """One whole answer, in ns after its arrival but for `wait_ns`."""

    index: int
    tenant: str
    ttft_ns: int
    e2e_ns: int
    wait_ns: int
    num_input: int
    num_output: int


def ended(replica: Replica, host: HostCosts) -> list[Ended]:
    """All whole answers of a replica."""
    step_ns = replica.ledger.step_ns
    return [
        Ended(
            track.index,
            track.tenant,
            step_ns[track.runs[0][0]] + host.text_ns - track.at_ns,
            step_ns[track.runs[-1][1]] + host.text_ns - track.at_ns,
            (track.planned_ns or 0) - track.at_ns - host.door_ns,
            track.num_input,
            track.num_tokens,
        )
        for track in replica.ledger.tracks
        if track.is_ended
    ]


def measure(
    policy: str,
    replicas: Sequence[Replica],
    refusals: Refusals,
    host: HostCosts,
    *,
    num_requests: int,
    rate: float,
    slo: Slo,
    price_per_hour: float | None,
) -> Figures:
    """The figures of a finished run. `price_per_hour` is of one replica."""
    answers = [answer for replica in replicas for answer in ended(replica, host)]
    duration_ns = max(
        (replica.ledger.step_ns[-1] for replica in replicas if replica.ledger.step_ns), default=0
    )
    duration_s = duration_ns / NS_PER_S or float("nan")
    num_output = sum(answer.num_output for answer in answers)
    num_good = sum(_is_good(answer, slo) for answer in answers)
    room = sum(
        replica.scheduler.device.num_blocks * replica.scheduler.device.block_size for replica in replicas
    )
    return Figures(
        policy=policy,
        num_replicas=len(replicas),
        rate=rate,
        num_requests=num_requests,
        num_finished=len(answers),
        rejected=refusals.by_reason,
        num_dropped=num_requests - len(answers) - refusals.total,
        duration_s=duration_s,
        num_input_tokens=sum(answer.num_input for answer in answers),
        num_output_tokens=num_output,
        ttft_ms=_quantiles([answer.ttft_ns for answer in answers]),
        itl_ms=_quantiles([gap for replica in replicas for gap in _gaps_ns(replica.ledger, host)]),
        tpot_ms=_quantiles([_tpot_ns(answer) for answer in answers if answer.num_output > 1]),
        e2e_ms=_quantiles([answer.e2e_ns for answer in answers]),
        wait_ms=_quantiles([answer.wait_ns for answer in answers]),
        output_tokens_per_s=num_output / duration_s,
        requests_per_s=len(answers) / duration_s,
        goodput=num_good / num_requests if num_requests else 0.0,
        goodput_per_s=num_good / duration_s,
        kv_mean=sum(replica.ledger.kv_token_ns for replica in replicas) / (room * duration_ns or 1),
        kv_max=max(_kv_max(replica) for replica in replicas),
        running_mean=sum(each.ledger.running_ns for each in replicas) / (len(replicas) * duration_ns or 1),
        running_crowded=_running_crowded(replicas),
        num_cached_tokens=sum(_num_cached(replica) for replica in replicas),
        num_preemptions=sum(replica.scheduler.num_preemptions for replica in replicas),
        num_padding_tokens=sum(replica.scheduler.num_padding_tokens for replica in replicas),
        num_steps=sum(replica.num_steps for replica in replicas),
        device_busy=sum(replica.busy_ns for replica in replicas) / (len(replicas) * duration_ns or 1),
        cost_per_million_tokens=_cost(price_per_hour, len(replicas), duration_s, num_output),
        by_tenant=_tenants(answers),
    )


def _running_crowded(replicas: Sequence[Replica]) -> float:
    crowded_ns = sum(replica.ledger.crowded_ns for replica in replicas)
    running_ns = sum(replica.ledger.running_crowded_ns for replica in replicas)
    return running_ns / crowded_ns if crowded_ns else float("nan")


def _num_cached(replica: Replica) -> int:
    return int(replica.scheduler.residents.prefixes.gauges().get("prefix_hit_tokens_total", 0))


def _tenants(answers: Sequence[Ended]) -> dict[str, TenantFigures]:
    names = sorted({answer.tenant for answer in answers})
    if len(names) < 2:
        return {}
    return {name: _tenant([answer for answer in answers if answer.tenant == name]) for name in names}


def _tenant(answers: Sequence[Ended]) -> TenantFigures:
    return TenantFigures(
        len(answers),
        sum(answer.num_output for answer in answers),
        _quantiles([answer.ttft_ns for answer in answers]),
        _quantiles([answer.e2e_ns for answer in answers]),
    )


def _gaps_ns(ledger: Ledger, host: HostCosts) -> list[int]:
    rule = FlushRule(host.flush_tokens, host.flush_ns)
    tracks = [track for track in ledger.tracks if track.is_ended]
    gaps: list[int] = []
    for track in tracks[:: max(1, -(-len(tracks) // MAX_STREAMS))]:
        writes = writes_ns(token_times_ns(ledger, track), rule)
        gaps += [later - sooner for sooner, later in pairwise(writes)]
    return gaps


def token_times_ns(ledger: Ledger, track: Track) -> list[int]:
    """When each token of an answer left the scheduler."""
    times: list[int] = []
    for first, last in track.runs:
        times += ledger.step_ns[first : last + 1]
    return times


def _tpot_ns(answer: Ended) -> float:
    return (answer.e2e_ns - answer.ttft_ns) / (answer.num_output - 1)


def _is_good(answer: Ended, slo: Slo) -> bool:
    return (
        (slo.ttft is None or answer.ttft_ns <= slo.ttft)
        and (slo.e2e is None or answer.e2e_ns <= slo.e2e)
        and (slo.tpot is None or answer.num_output < 2 or _tpot_ns(answer) <= slo.tpot)
    )


def _kv_max(replica: Replica) -> float:
    device = replica.scheduler.device
    return replica.ledger.max_kv_tokens / (device.num_blocks * device.block_size)


def _cost(
    price_per_hour: float | None, num_replicas: int, duration_s: float, num_tokens: int
) -> float | None:
    if price_per_hour is None or not num_tokens:
        return None
    return price_per_hour * num_replicas * duration_s / 3600 / num_tokens * 1e6


def _quantiles(values_ns: Sequence[float]) -> Quantiles:
    """NaN where there are none."""
    if not values_ns:
        return Quantiles(*[float("nan")] * 6)
    values: Times = np.array(values_ns, np.float64) / 1e6
    p50, p90, p99, p999 = np.percentile(values, (50, 90, 99, 99.9)).tolist()
    return Quantiles(float(values.mean()), p50, p90, p99, p999, float(values.max()))
