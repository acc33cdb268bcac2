"""OTLP over HTTP: the only module that knows the OpenTelemetry SDK. An extra: pip install stageline[otlp]."""

import logging
import secrets
import time
from collections.abc import Sequence
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext as OtelContext
from opentelemetry.trace import SpanKind, Status, StatusCode, TraceFlags

from pipeline.core.trace_context import SpanContext
from pipeline.telemetry.span_export import Trace
from pipeline.telemetry.spans import Span

PATH = "/v1/traces"
TIMEOUT_S = 5.0


class OtlpSender:
    """A `span_export.Sender`.

    Its requests are limited to TIMEOUT_S, retries included. Headers (an API key) and further attributes
    of the service come from OTEL_EXPORTER_OTLP_HEADERS and OTEL_RESOURCE_ATTRIBUTES, as everywhere.
    """

    def __init__(self, endpoint: str) -> None:
        _silence()
        base = endpoint.rstrip("/")
        self._exporter = OTLPSpanExporter(base if base.endswith(PATH) else base + PATH, timeout=TIMEOUT_S)
        own = Resource({SERVICE_NAME: "stageline", SERVICE_VERSION: version("stageline")})
        self._resource = own.merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("stageline", version("stageline"))
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()
        """Wall time of the monotonic clock's zero, taken once: spans do not jump when the wall clock does."""

    def send(self, traces: Sequence[Trace]) -> bool:
        spans = [span for trace in traces for span in self._spans(*trace)]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _spans(self, own: SpanContext, parent_span_id: str, spans: list[Span]) -> list[ReadableSpan]:
        parent = _context(SpanContext(own.trace_id, parent_span_id, own.flags)) if parent_span_id else None
        root = self._span(spans[0], _context(own), parent, SpanKind.SERVER)
        return [root, *(self._span(span, _child(own), root.context, SpanKind.INTERNAL) for span in spans[1:])]

    def _span(self, span: Span, own: OtelContext, parent: OtelContext | None, kind: SpanKind) -> ReadableSpan:
        epoch_ns = self._epoch_ns
        return ReadableSpan(
            span.name,
            context=own,
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(event.name, timestamp=event.at_ns + epoch_ns) for event in span.events],
            kind=kind,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.begin_ns + epoch_ns,
            end_time=span.end_ns + epoch_ns,
            instrumentation_scope=self._scope,
        )


def _silence() -> None:
    """The SDK logs each try that fails in a form of its own; SpanExport says it once, in ours."""
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.handlers = [logging.NullHandler()]


def _context(span: SpanContext) -> OtelContext:
    return OtelContext(
        int(span.trace_id, 16), int(span.span_id, 16), False, trace_flags=TraceFlags(span.flags)
    )


def _child(own: SpanContext) -> OtelContext:
    return _context(own._replace(span_id=f"{secrets.randbits(64) or 1:016x}"))
