"""When the streamer writes: Nagle's rule with a bound (RFC 896 has none).

A request's text goes out with `max_tokens` pending, or `max_wait_ns` after its last write, whichever is
first. So the first token leaves at once, a stream slower than one token per `max_wait_ns` never waits, and
a fast one costs one write per `max_wait_ns`.
"""

from typing import NamedTuple

NEVER_NS = -(1 << 62)
"""`last_ns` of a request that has not been written to."""


class FlushRule(NamedTuple):
    max_tokens: int
    max_wait_ns: int

    def coarser(self, max_tokens: int, max_wait_ns: int) -> "FlushRule":
        """What a client asks for, as far as it makes no more writes than this rule."""
        return FlushRule(max(self.max_tokens, max_tokens), max(self.max_wait_ns, max_wait_ns))

    def is_due(self, num_pending: int, last_ns: int, now_ns: int) -> bool:
        """Whether `num_pending` (> 0) tokens go out now."""
        return num_pending >= self.max_tokens or now_ns - last_ns >= self.max_wait_ns

    def due_ns(self, last_ns: int) -> int:
        """When pending tokens go out at the latest."""
        return last_ns + self.max_wait_ns
