"""W3C Trace Context: the `traceparent` header, read and written.

Source: https://www.w3.org/TR/trace-context-2/ (sections 3.2 and 4). `tracestate` is not read: it is only for
passing on, and this server calls nobody.
"""

import re
from typing import NamedTuple

SAMPLED = 0x01
"""Flag: the caller may have recorded this trace."""
RANDOM = 0x02
"""Flag: the trace id's last seven bytes are random (Level 2)."""

_KNOWN_FLAGS = SAMPLED | RANDOM
_FIELDS = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LENGTH = 55


class SpanContext(NamedTuple):
    """One span of one trace, as it is told to others."""

    trace_id: str
    """32 lowercase hex digits, not all zero."""
    span_id: str
    """16 lowercase hex digits, not all zero."""
    flags: int

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    def __str__(self) -> str:
        """As a `traceparent` of version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(text: str) -> SpanContext | None:
    """The caller's span, or None where the text is invalid and the trace has to begin anew.

    Of a version above 00 the fields of version 00 are read, whatever follows them; flags that are not known
    are not passed on.
    """
    fields = _FIELDS.match(text)
    if fields is None:
        return None
    version, trace_id, span_id, flags = fields.groups()
    rest = text[_LENGTH:]
    if version == "ff" or (rest and (version == "00" or rest[0] != "-")):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return SpanContext(trace_id, span_id, int(flags, 16) & _KNOWN_FLAGS)


def child_of(parent: SpanContext, span_bits: int) -> SpanContext:
    """A span in the trace of `parent`, its id made of 64 random bits."""
    return SpanContext(parent.trace_id, _hex(span_bits, 16), parent.flags)


def new_trace(trace_bits: int, span_bits: int) -> SpanContext:
    """The first span of a trace that is recorded, its ids made of 128 and 64 random bits."""
    return SpanContext(_hex(trace_bits, 32), _hex(span_bits, 16), SAMPLED | RANDOM)


def _hex(bits: int, digits: int) -> str:
    return f"{bits or 1:0{digits}x}"  # all zero is the one id that is invalid
