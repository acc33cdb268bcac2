"""Spans: one ended request as OpenTelemetry tells it, built from its record and nothing else.

One root, one child per stage up to the first token, one for decode; docs/tracing.md lists the names. Those
that begin with gen_ai are OpenTelemetry's (semantic conventions for generative AI), the others are ours.
"""

from typing import NamedTuple

from pipeline.telemetry.journal import RequestRecord
from pipeline.telemetry.request_parts import DecodePart, StagePart, decode_part, stage_parts

Value = str | int | float | list[str]

_MS = 1e-6
_S = 1e-9


class SpanEvent(NamedTuple):
    name: str
    at_ns: int


class Span(NamedTuple):
    """Times are of the record's clock."""

    name: str
    begin_ns: int
    end_ns: int
    attributes: dict[str, Value]
    events: tuple[SpanEvent, ...] = ()
    error: str = ""
    """What went wrong, in a word; empty: nothing."""


def spans_of(record: RequestRecord, model: str) -> list[Span]:
    """The root, then its children in the order of time."""
    children = [_stage(part) for part in stage_parts(record)]
    decode = decode_part(record)
    if decode is not None:
        children.append(_decode(decode))
    return [_root(record, model), *children]


def _root(record: RequestRecord, model: str) -> Span:
    operation = "chat" if record.is_chat else "text_completion"
    error = _error(record)
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "stageline",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": [record.finish],
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": record.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.num_cached_tokens,
        "stageline.request_id": record.request_id,
        "stageline.num_preemptions": record.num_preemptions,
        "stageline.num_dropped_tokens": record.num_dropped_tokens,
        "stageline.paused_ms": record.paused_ns * _MS,
    }
    if record.ttft_ns is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = record.ttft_ns * _S
    if error:
        attributes["error.type"] = error
    end_ns = record.arrived_ns + record.e2e_ns
    return Span(f"{operation} {model}", record.arrived_ns, end_ns, attributes, _events(record), error)


def _error(record: RequestRecord) -> str:
    """A client that leaves is no error of the server's."""
    if record.finish == "rejected":
        return record.code
    return "internal_error" if record.finish == "error" else ""


def _events(record: RequestRecord) -> tuple[SpanEvent, ...]:
    events = [SpanEvent("preempted", at_ns) for at_ns in record.preempted_ns]
    if record.ttft_ns is not None:
        events.append(SpanEvent("first_token", record.arrived_ns + record.ttft_ns))
    return tuple(sorted(events, key=lambda event: event.at_ns))


def _stage(part: StagePart) -> Span:
    attributes: dict[str, Value] = {
        "stageline.wait_ms": part.wait_ns * _MS,
        "stageline.service_ms": part.service_ns * _MS,
    }
    return Span(part.stage, part.begin_ns, part.end_ns, attributes)


def _decode(part: DecodePart) -> Span:
    attributes: dict[str, Value] = {
        f"stageline.{name}_ms": value_ns * _MS for name, value_ns in part.segments_ns.items()
    }
    attributes["stageline.overlap_ms"] = part.overlap_ns * _MS
    return Span("decode", part.begin_ns, part.end_ns, attributes)
