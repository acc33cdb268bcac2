"""A stretch of a server's life as a Perfetto trace: stages, device steps, counters, and every request.

Ended requests and steps come from the journal, which has them exactly; what the stages did, and the requests
that still live, from the ring of trace points. The ring may have lost either end of a pair: a half without
its other half is left out. docs/tracing.md says what is to be seen.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from pipeline.runtime.swapped import Ending
from pipeline.runtime.trace import Point, Trace, TracePoint
from pipeline.telemetry.journal import Journal, RequestRecord, StepRecord
from pipeline.telemetry.request_parts import STAGES
from pipeline.telemetry.request_tracks import ended_request, live_request
from pipeline.telemetry.trace_events import Event, Process, Slice, in_lanes

DEVICE = "device"
SWAP_ENDINGS = tuple(str(ending) for ending in Ending)
"""By their place here, as a trace point tells it."""


class Recorded(NamedTuple):
    """What a trace is made of, taken at one moment on the loop."""

    since_ns: int
    """Points and counters before it are left out; whatever ends after it is whole."""
    points: Sequence[TracePoint]
    """The whole ring, oldest first: of a live request only its points tell, however old."""
    requests: Sequence[RequestRecord]
    steps: Sequence[StepRecord]

    @classmethod
    def of(cls, trace: Trace, journal: Journal, since_ns: int) -> "Recorded":
        """On the loop; copies full rings in some 5 ms."""
        return cls(since_ns, trace.points(), journal.requests(since_ns), journal.steps(since_ns))


def chrome_trace(recorded: Recorded) -> bytes:
    """The JSON. Full rings take a second of a core: call it off the loop.

    Event by event, so that no list of a million objects makes the garbage collector stop the server.
    """
    base_ns = _base_ns(recorded)
    head = b'{"displayTimeUnit":"ms","otherData":{"base_ns":%d},"traceEvents":[' % base_ns
    return head + b",".join(map(msgspec.json.encode, _events(recorded, base_ns))) + b"]}"


def _events(recorded: Recorded, base_ns: int) -> Iterator[Event]:
    points = [point for point in recorded.points if point[0] >= recorded.since_ns]
    server, requests = Process(1, "server"), Process(2, "requests")
    yield from _stages(points, server, base_ns)
    yield from _swaps(points, server, base_ns)
    yield from _device(recorded.steps, server, base_ns)
    yield from _counters(recorded.steps, server, base_ns)
    yield from _requests(recorded, requests, base_ns)
    yield from server.names()
    yield from requests.names()


def _base_ns(recorded: Recorded) -> int:
    """The earliest time that is drawn: small numbers keep their nanoseconds in JSON."""
    times = [
        *(point[0] for point in recorded.points),
        *(record.arrived_ns for record in recorded.requests),
        *(step.planned_ns for step in recorded.steps),
    ]
    return min(times, default=0)


def _stages(points: Sequence[TracePoint], server: Process, base_ns: int) -> Iterator[Event]:
    slices: dict[str, list[Slice]] = defaultdict(list)
    for stage, item in _stage_slices(points, base_ns):
        slices[stage].append(item)
    for stage in sorted(slices, key=_place):
        for lane, item in in_lanes(slices[stage]):
            yield server.complete(stage if lane == 0 else f"{stage} #{lane + 1}", item)


def _place(stage: str) -> int:
    """In the order of the data; a stage that is not of ours comes last."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def _stage_slices(points: Iterable[TracePoint], base_ns: int) -> Iterator[tuple[str, Slice]]:
    for at_ns, point, stage, took_ns, count in points:
        if point == Point.HANDLED:
            begin_ns = at_ns - base_ns
            yield stage, Slice(begin_ns, begin_ns + took_ns, stage, {"messages": count})


def _swaps(points: Iterable[TracePoint], server: Process, base_ns: int) -> Iterator[Event]:
    """Another one was to take the place of a stage."""
    for at_ns, point, stage, paused_ns, ending in points:
        if point == Point.SWAPPED:
            args = {"ending": SWAP_ENDINGS[ending], "paused_us": paused_ns / 1000}
            yield server.instant(stage, "swap", at_ns - base_ns, args)


def _device(steps: Iterable[StepRecord], server: Process, base_ns: int) -> Iterator[Event]:
    for step in steps:
        args = {"step": step.step_id, "rows": step.num_rows}
        yield server.instant("schedule", "plan", step.planned_ns - base_ns, args)
        yield server.instant("sample", "sampled", step.sampled_ns - base_ns, args)
        yield server.instant("schedule", "applied", step.applied_ns - base_ns, args)
    for lane, item in in_lanes(_step_slice(step, base_ns) for step in steps):
        yield server.complete(DEVICE if lane == 0 else f"{DEVICE} #{lane + 1}", item)


def _step_slice(step: StepRecord, base_ns: int) -> Slice:
    args = {
        "step": step.step_id,
        "rows": step.num_rows,
        "prefill_tokens": step.num_prefill_tokens,
        "decode_tokens": step.num_decode_tokens,
        "planned_before_us": (step.begin_ns - step.planned_ns) / 1000,
        "host_gap_us": step.host_gap_ns / 1000,
        "preempted": step.num_preempted,
    }
    return Slice(step.begin_ns - base_ns, step.end_ns - base_ns, f"step {step.step_id}", args)


def _counters(steps: Iterable[StepRecord], server: Process, base_ns: int) -> Iterator[Event]:
    for step in steps:
        at_ns = step.planned_ns - base_ns
        sequences = {"running": step.num_running, "waiting": step.num_waiting}
        tokens = {"prefill": step.num_prefill_tokens, "decode": step.num_decode_tokens}
        yield server.counter("sequences", at_ns, sequences)
        yield server.counter("blocks", at_ns, {"used": step.num_used_blocks})
        yield server.counter("step tokens", at_ns, tokens)


def _requests(recorded: Recorded, requests: Process, base_ns: int) -> Iterator[Event]:
    """In the order of arrival, ended and live ones together."""
    lives = _lives(recorded.points)
    preempted: dict[int, list[int]] = defaultdict(list)
    for at_ns, point, _, request_id, _ in recorded.points:
        if point == Point.PREEMPTED and request_id in lives:
            preempted[request_id].append(at_ns)
    drawn = [(record.arrived_ns, ended_request(record, requests, base_ns)) for record in recorded.requests]
    for request_id, life in lives.items():
        events = live_request(request_id, life, preempted[request_id], requests, base_ns)
        drawn.append((life[Point.ARRIVED], events))
    for _, events in sorted(drawn, key=lambda pair: pair[0]):
        yield from events


def _lives(points: Iterable[TracePoint]) -> dict[int, dict[int, int]]:
    """The points of each request that has arrived and not ended, by kind; the first of each."""
    lives: dict[int, dict[int, int]] = {}
    for at_ns, point, _, request_id, _ in points:
        if point == Point.ARRIVED:
            lives[request_id] = {point: at_ns}
        elif point == Point.FINISHED:
            lives.pop(request_id, None)
        elif point in (Point.TOKENIZED, Point.SCHEDULED, Point.FIRST_TOKEN) and request_id in lives:
            lives[request_id].setdefault(point, at_ns)
    return lives
