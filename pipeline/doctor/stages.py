"""Each stage's utilisation, rates and queue, from the samples."""

from collections.abc import Sequence
from itertools import pairwise

from pipeline.doctor.diagnosis import StageState
from pipeline.doctor.steps import busy_ns, busy_share
from pipeline.messages import SEGMENTS
from pipeline.telemetry import RequestRecord, Sample, StageSample, StepRecord

MIN_STRETCH_NS = 200_000_000
"""Between two samples; shorter stretches say nothing of a rate."""


def stage_states(samples: Sequence[Sample], requests: Sequence[RequestRecord]) -> tuple[StageState, ...]:
    """In data order. At least two samples."""
    return tuple(_state(stage.name, samples, requests) for stage in samples[-1].stages)


def device_state(steps: Sequence[StepRecord], span_s: float, credits: int) -> StageState:
    """The device as one more stage: its queue is the plans that are out, and its calls are steps."""
    service_ms = sum(s.end_ns - s.begin_ns for s in steps) / len(steps) / 1e6 if steps else 0.0
    waits_ms = sum(max(0, s.begin_ns - s.planned_ns) for s in steps) / len(steps) / 1e6 if steps else None
    rate = len(steps) / span_s
    return StageState(
        name="device",
        workers=1,
        utilisation=busy_ns(steps) / 1e9 / span_s,
        peak_utilisation=busy_share(steps),
        arrivals_per_s=rate,
        served_per_s=rate,
        service_ms=service_ms,
        wait_ms=waits_ms,
        mean_depth=rate * (waits_ms or 0.0) / 1e3,
        peak_depth=credits,
        bound=credits,
    )


def of(sample: Sample, name: str) -> StageSample:
    """KeyError if the sample has no such stage."""
    return next(stage for stage in sample.stages if stage.name == name)


def _state(name: str, samples: Sequence[Sample], requests: Sequence[RequestRecord]) -> StageState:
    first, last = of(samples[0], name), of(samples[-1], name)
    span_s = (samples[-1].at_ns - samples[0].at_ns) / 1e9
    num_batches = last.num_batches - first.num_batches
    busy_ns = last.busy_ns - first.busy_ns
    return StageState(
        name=name,
        workers=last.workers,
        utilisation=_utilisation(name, samples[0], samples[-1]),
        peak_utilisation=max(_utilisation(name, *pair) for pair in _stretches(samples)),
        arrivals_per_s=(last.sent - first.sent) / span_s,
        served_per_s=(last.num_messages - first.num_messages) / span_s,
        service_ms=busy_ns / num_batches / 1e6 if num_batches else 0.0,
        wait_ms=_wait_ms(f"{name}.wait", requests),
        mean_depth=sum(of(sample, name).depth for sample in samples) / len(samples),
        peak_depth=last.peak_depth,
        bound=last.bound,
    )


def _utilisation(name: str, before: Sample, after: Sample) -> float:
    first, last = of(before, name), of(after, name)
    return (last.busy_ns - first.busy_ns) / ((after.at_ns - before.at_ns) * last.workers)


def _stretches(samples: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    long = [pair for pair in pairwise(samples) if pair[1].at_ns - pair[0].at_ns >= MIN_STRETCH_NS]
    return long or [(samples[0], samples[-1])]


def _wait_ms(segment: str, requests: Sequence[RequestRecord]) -> float | None:
    if segment not in SEGMENTS or not requests:
        return None
    index = SEGMENTS.index(segment)
    return sum(r.segments_ns[index] for r in requests) / len(requests) / 1e6
