"""The track of one request in a Perfetto trace.

    request 7 ------------------------------------------------------------
      ttft -----------------------------------------  decode -------------
        tokenize ---  schedule ------  execute  ...
          wait service  wait   service   ...

Each line fills the one above it, to the nanosecond. What took no time is left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.core.trace_context import parse_traceparent
from pipeline.messages import SEGMENTS
from pipeline.runtime.trace import Point
from pipeline.telemetry.journal import RequestRecord
from pipeline.telemetry.request_parts import DecodePart, StagePart, decode_part, stage_parts
from pipeline.telemetry.trace_events import Event, Process, Slice

LIFE = (
    (Point.ARRIVED, Point.TOKENIZED, "tokenize"),
    (Point.TOKENIZED, Point.SCHEDULED, "wait for a slot"),
    (Point.SCHEDULED, Point.FIRST_TOKEN, "prefill"),
)
"""What points tell of a request that still lives."""


def ended_request(record: RequestRecord, requests: Process, base_ns: int) -> Iterator[Event]:
    track = f"request {record.request_id}"
    for item in _slices(record):
        if item.end_ns > item.begin_ns:
            yield requests.complete(track, _since(item, base_ns))
    for at_ns in record.preempted_ns:
        yield requests.instant(track, "preempted", at_ns - base_ns, {})


def live_request(
    request_id: int,
    life: Mapping[int, int],
    preempted_ns: Iterable[int],
    requests: Process,
    base_ns: int,
) -> Iterator[Event]:
    """`life` has the request's points by kind, ARRIVED among them. Its slice has no end."""
    track = f"request {request_id}"
    yield requests.begin(track, f"request {request_id} (live)", life[Point.ARRIVED] - base_ns)
    for begin, end, name in LIFE:
        if begin in life and end in life:
            yield requests.begin(track, name, life[begin] - base_ns)
            yield requests.end(track, name, life[end] - base_ns)
    for at_ns in preempted_ns:
        yield requests.instant(track, "preempted", at_ns - base_ns, {})


def _slices(record: RequestRecord) -> Iterator[Slice]:
    """Outer before inner, as the format wants them."""
    end_ns = record.arrived_ns + record.e2e_ns
    yield Slice(record.arrived_ns, end_ns, f"request {record.request_id}", _told(record))
    if record.ttft_ns is not None:
        yield Slice(record.arrived_ns, record.arrived_ns + record.ttft_ns, "ttft", {})
    for part in stage_parts(record):
        yield from _stage(part)
    if decode := decode_part(record):
        yield _decode(decode, record.num_output_tokens)


def _stage(part: StagePart) -> Iterator[Slice]:
    served_ns = part.begin_ns + part.wait_ns
    yield Slice(part.begin_ns, part.end_ns, part.stage, {})
    if f"{part.stage}.wait" in SEGMENTS:
        yield Slice(part.begin_ns, served_ns, "wait", {})
        yield Slice(served_ns, part.end_ns, "service", {})


def _decode(part: DecodePart, num_tokens: int) -> Slice:
    args: dict[str, Any] = {f"{name}_ms": value_ns / 1e6 for name, value_ns in part.segments_ns.items()}
    args |= {"overlap_ms": part.overlap_ns / 1e6, "output_tokens": num_tokens}
    return Slice(part.begin_ns, part.end_ns, "decode", args)


def _told(record: RequestRecord) -> dict[str, Any]:
    span = parse_traceparent(record.trace_parent)
    return {
        "finish": record.finish,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "output_tokens": record.num_output_tokens,
        "preemptions": record.num_preemptions,
        "dropped_tokens": record.num_dropped_tokens,
        "paused_ms": record.paused_ns / 1e6,
        **({"code": record.code} if record.code else {}),
        **({"trace_id": span.trace_id} if span else {}),
    }


def _since(item: Slice, base_ns: int) -> Slice:
    return item._replace(begin_ns=item.begin_ns - base_ns, end_ns=item.end_ns - base_ns)
