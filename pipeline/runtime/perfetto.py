"""Trace points as a Chrome trace, which ui.perfetto.dev opens.

One track per stage and per device, more where a pool's instances overlap; one asynchronous track per
request. The ring may have lost either end of a pair: a half without its other half is left out.
Format: "Trace Event Format" (Google), JSON object form.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from pipeline.runtime.trace import Point, TracePoint

Event = dict[str, Any]

SERVER, REQUESTS = 1, 2
"""The two processes of the trace: what the server does, and what becomes of each request."""

INSTANTS = (Point.REFUSED, Point.PLAN, Point.SAMPLED, Point.APPLIED)
LIFE = (
    (Point.ARRIVED, Point.TOKENIZED, "tokenize"),
    (Point.TOKENIZED, Point.SCHEDULED, "wait for a slot"),
    (Point.SCHEDULED, Point.FIRST_TOKEN, "prefill"),
    (Point.FIRST_TOKEN, Point.FINISHED, "decode"),
)


class Slice(NamedTuple):
    begin_ns: int
    end_ns: int
    track: str
    name: str
    args: dict[str, int]


def chrome_trace(points: list[TracePoint]) -> bytes:
    """JSON of the points, in any order. A full ring takes 0.15 s of a core: call it off the loop."""
    points = sorted(points, key=lambda point: point[0])
    base_ns = points[0][0] if points else 0
    tracks = _Tracks()
    events = [
        *_named(SERVER, "server"),
        *_named(REQUESTS, "requests"),
        *_slice_events(_stage_slices(points), tracks, base_ns),
        *_slice_events(_device_slices(points), tracks, base_ns),
        *_instant_events(points, tracks, base_ns),
        *_request_events(points, base_ns),
        *tracks.names(),
    ]
    trace = {"displayTimeUnit": "ms", "otherData": {"base_ns": base_ns}, "traceEvents": events}
    return msgspec.json.encode(trace)


class _Tracks:
    """Thread ids by track name, in the order of first use."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def id(self, name: str) -> int:
        return self._ids.setdefault(name, len(self._ids) + 1)

    def names(self) -> Iterator[Event]:
        for name, tid in self._ids.items():
            yield _meta(SERVER, tid, "thread_name", name=name)
            yield _meta(SERVER, tid, "thread_sort_index", sort_index=tid)


def _stage_slices(points: Iterable[TracePoint]) -> Iterator[Slice]:
    """RECV with the DONE of the same stage and batch size: a pool's instances are told apart by no more."""
    taken: dict[tuple[str, int], deque[int]] = defaultdict(deque)
    for at_ns, point, stage, _, count in points:
        if point is Point.RECV:
            taken[stage, count].append(at_ns)
        elif point is Point.DONE and taken[stage, count]:
            yield Slice(taken[stage, count].popleft(), at_ns, stage, stage, {"messages": count})


def _device_slices(points: Iterable[TracePoint]) -> Iterator[Slice]:
    begun: dict[tuple[str, int], int] = {}
    for at_ns, point, name, step_id, count in points:
        if point is Point.DEVICE_BEGIN:
            begun[name, step_id] = at_ns
        elif point is Point.DEVICE_END and (name, step_id) in begun:
            args = {"step": step_id, "rows": count}
            yield Slice(begun.pop((name, step_id)), at_ns, f"device ({name})", f"step {step_id}", args)


def _slice_events(slices: Iterable[Slice], tracks: _Tracks, base_ns: int) -> Iterator[Event]:
    """Slices of one track that overlap go to further tracks: the format would read them as nested."""
    ends_ns: dict[str, list[int]] = defaultdict(list)
    for item in sorted(slices):
        lane = _free_lane(ends_ns[item.track], item)
        track = item.track if lane == 0 else f"{item.track} #{lane + 1}"
        yield {
            **_event("X", item.name, item.begin_ns - base_ns, tracks.id(track)),
            "dur": (item.end_ns - item.begin_ns) / 1000,
            "args": item.args,
        }


def _free_lane(ends_ns: list[int], item: Slice) -> int:
    for lane, end_ns in enumerate(ends_ns):
        if end_ns <= item.begin_ns:
            ends_ns[lane] = item.end_ns
            return lane
    ends_ns.append(item.end_ns)
    return len(ends_ns) - 1


def _instant_events(points: Iterable[TracePoint], tracks: _Tracks, base_ns: int) -> Iterator[Event]:
    for at_ns, point, name, key, count in points:
        if point in INSTANTS:
            event = _event("i", Point(point).name.lower(), at_ns - base_ns, tracks.id(name))
            yield {**event, "s": "t", "args": {"key": key, "count": count}}


def _request_events(points: Iterable[TracePoint], base_ns: int) -> Iterator[Event]:
    """A request's whole life, its parts nested in it, and its preemptions as instants."""
    lives: dict[int, dict[int, int]] = defaultdict(dict)
    for at_ns, point, _, request_id, _ in points:
        if point is Point.PREEMPTED:
            yield _async("n", "preempted", at_ns - base_ns, request_id)
        elif Point.ARRIVED <= point <= Point.FINISHED:
            lives[request_id].setdefault(point, at_ns)
    for request_id, life in lives.items():
        for begin, end, name in ((Point.ARRIVED, Point.FINISHED, f"request {request_id}"), *LIFE):
            if begin in life and end in life:
                yield _async("b", name, life[begin] - base_ns, request_id)
                yield _async("e", name, life[end] - base_ns, request_id)


def _event(phase: str, name: str, since_ns: int, tid: int) -> Event:
    return {"ph": phase, "name": name, "ts": since_ns / 1000, "pid": SERVER, "tid": tid}


def _async(phase: str, name: str, since_ns: int, request_id: int) -> Event:
    event = {"ph": phase, "cat": "request", "id": request_id, "name": name}
    return {**event, "ts": since_ns / 1000, "pid": REQUESTS, "tid": 0}


def _named(pid: int, name: str) -> Iterator[Event]:
    yield _meta(pid, 0, "process_name", name=name)
    yield _meta(pid, 0, "process_sort_index", sort_index=pid)


def _meta(pid: int, tid: int, kind: str, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
