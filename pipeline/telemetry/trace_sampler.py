"""Which requests belong to a trace: those whose caller says so, and a share of the others."""

import random
from typing import NamedTuple

from pipeline.core.trace_context import SpanContext, child_of, new_trace, parse_traceparent


class RequestSpan(NamedTuple):
    """The span of one request, and whose child it is."""

    own: SpanContext
    parent_span_id: str
    """Empty: it is the first of its trace."""


class TraceSampler:
    """Decides at the door, once per request. A caller's decision holds (W3C Trace Context, 4.3)."""

    def __init__(self, ratio: float = 0.0) -> None:
        """`ratio` of the requests without a traceparent begin a trace; 0 where no exporter is on."""
        self._ratio = ratio
        self._random = random.Random()

    def span(self, traceparent: str | None) -> RequestSpan | None:
        """The request's own span; None: it has no trace. An invalid traceparent is as none."""
        if traceparent is not None and (caller := parse_traceparent(traceparent)) is not None:
            return RequestSpan(child_of(caller, self._random.getrandbits(64)), caller.span_id)
        if self._ratio and self._random.random() < self._ratio:
            return RequestSpan(new_trace(self._random.getrandbits(128), self._random.getrandbits(64)), "")
        return None
