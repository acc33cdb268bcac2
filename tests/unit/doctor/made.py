"""Evidence made up: a healthy server for ten seconds, and what a test changes of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from pipeline.messages import SEGMENTS
from pipeline.telemetry import Evidence, RequestRecord, Sample, Settings, StageSample, StepRecord
from pipeline.topology import NODES

MS = 1_000_000
SECOND = 1000 * MS
BEGIN = 5 * SECOND
SPAN_S = 10

SETTINGS = Settings(
    device="fake",
    num_cpus=4,
    num_blocks=1000,
    block_size=16,
    max_num_seqs=8,
    max_num_batched_tokens=256,
    credits=2,
    tokenize_workers=2,
    max_waiting=256,
    max_live_requests=1024,
)
HEALTHY: Mapping[str, tuple[float, float]] = {
    "tokenize.service": (1, 1),
    "schedule.wait": (10, 15),
    "execute.service": (20, 180),
    "sample.service": (1, 4),
}
"""Milliseconds of a request's segments: up to its first token, and in all."""

Segments = Mapping[str, tuple[float, float]]


def request(number: int, segments: Segments = HEALTHY, **fields: Any) -> RequestRecord:
    """Number k comes 200 ms after number k - 1."""
    first, whole = (tuple(int(segments.get(name, (0, 0))[part] * MS) for name in SEGMENTS) for part in (0, 1))
    known = {
        "request_id": number,
        "arrived_ns": BEGIN + number * 200 * MS,
        "e2e_ns": sum(whole),
        "finish": "length",
        "code": "",
        "num_prompt_tokens": 50,
        "num_output_tokens": 10,
        "num_preemptions": 0,
        "ttft_ns": sum(first),
        "segments_ns": whole,
        "ttft_segments_ns": first,
        "paused_ns": 0,
        "trace_parent": "",
    }
    return RequestRecord(**(known | fields))


def requests(count: int = 45, segments: Segments = HEALTHY, **fields: Any) -> tuple[RequestRecord, ...]:
    return tuple(request(number, segments, **fields) for number in range(count))


def step(number: int, ms: float = 16.0, every_ms: float = 20.0, **fields: Any) -> StepRecord:
    """Number k begins `every_ms` after number k - 1: a device that rests a fifth of the time."""
    begin_ns = BEGIN + int(number * every_ms * MS)
    end_ns = begin_ns + int(ms * MS)
    known = {
        "step_id": number + 1,
        "planned_ns": begin_ns,
        "begin_ns": begin_ns,
        "end_ns": end_ns,
        "sampled_ns": end_ns,
        "applied_ns": end_ns,
        "host_gap_ns": 0,
        "num_rows": 2,
        "num_prefill_tokens": 0,
        "num_decode_tokens": 2,
        "num_running": 2,
        "num_waiting": 0,
        "num_used_blocks": 20,
        "num_kv_tokens": 300,
        "num_preempted": 0,
    }
    return StepRecord(**(known | fields))


def steps(count: int = 500, **fields: Any) -> tuple[StepRecord, ...]:
    return tuple(step(number, **fields) for number in range(count))


def shaped(count: int, shape: Callable[[int], Mapping[str, Any]]) -> tuple[StepRecord, ...]:
    """Steps of which each is given its own fields."""
    return tuple(step(number, **shape(number)) for number in range(count))


def packed(count: int, shape: Callable[[int], Mapping[str, Any]]) -> tuple[StepRecord, ...]:
    """The same, each beginning when the one before has ended: a device without rest."""
    made: list[StepRecord] = []
    for each in shaped(count, shape):
        late_ns = (made[-1].end_ns if made else BEGIN) - each.begin_ns
        made.append(replace(each, begin_ns=each.begin_ns + late_ns, end_ns=each.end_ns + late_ns))
    return tuple(made)


def stage(name: str, second: int, num_steps_per_s: float = 50.0, **fields: Any) -> StageSample:
    """After so many seconds of five requests and fifty steps each."""
    per_s = 5 if name in ("tokenize",) else num_steps_per_s
    known = {
        "name": name,
        "workers": 2 if name == "tokenize" else 1,
        "depth": 0,
        "bound": 256 if name == "tokenize" else 8,
        "peak_depth": 1,
        "sent": int(per_s * second),
        "posted": 0,
        "refused": 0,
        "blocked": 0,
        "blocked_ns": 0,
        "num_batches": int(per_s * second),
        "num_messages": int(per_s * second),
        "busy_ns": second * MS,
    }
    return StageSample(**(known | fields))


def sample(second: int, stages: Mapping[str, Mapping[str, Any]] | None = None, **fields: Any) -> Sample:
    known = {
        "at_ns": BEGIN + second * SECOND,
        "stages": tuple(stage(node.name, second, **(stages or {}).get(node.name, {})) for node in NODES),
        "num_live": 1,
        "num_refused": 0,
        "thread_cpu_ns": {"loop": second * 50 * MS},
        "process_cpu_ns": second * 60 * MS,
        "rss_bytes": 1 << 28,
        "loop_lag_ns": 2 * MS,
        "gc_pauses": second,
        "gc_pause_ns": second * MS,
    }
    return Sample(**(known | fields))


def samples(of: Callable[[int], Mapping[str, Any]] | None = None) -> tuple[Sample, ...]:
    """One a second, each with the fields that `of` its second says."""
    return tuple(sample(second, **(of(second) if of else {})) for second in range(SPAN_S + 1))


def busy(name: str, share: float, workers: int = 1) -> Callable[[int], Mapping[str, Any]]:
    """Samples of a stage that is busy so much of its workers' time."""
    return lambda second: {"stages": {name: {"busy_ns": int(second * SECOND * share * workers)}}}


def evidence(
    of_requests: Sequence[RequestRecord] | None = None,
    of_steps: Sequence[StepRecord] | None = None,
    of_samples: Sequence[Sample] | None = None,
    settings: Settings = SETTINGS,
) -> Evidence:
    return Evidence(
        begin_ns=BEGIN,
        end_ns=BEGIN + SPAN_S * SECOND,
        settings=settings,
        samples=tuple(of_samples) if of_samples is not None else samples(),
        requests=tuple(of_requests) if of_requests is not None else requests(50),
        steps=tuple(of_steps) if of_steps is not None else steps(),
    )
