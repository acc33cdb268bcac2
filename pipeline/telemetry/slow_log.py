"""The slow-request log: one line for each request over a threshold, with where its time went.

A flood of slow requests gives a trickle of lines: the next one says how many were left out before it, and the
metrics count them all. No line has a word of a prompt or an answer.
"""

import structlog

from pipeline.core.trace_context import parse_traceparent
from pipeline.messages import SEGMENTS
from pipeline.telemetry.journal import RequestRecord

BURST = 50
"""Lines at once, and"""
LINES_PER_S = 10.0
"""lines a second for as long as it lasts: some 10 KB/s."""

_MS = 1e-6


class SlowLog:
    """Hears every ended request (Journal.listen). Its clock is the requests' own."""

    def __init__(
        self, e2e_ms: float, ttft_ms: float, log: structlog.typing.FilteringBoundLogger | None = None
    ) -> None:
        """A request is slow if it took `e2e_ms`, or waited `ttft_ms` for its first token. 0: every one is."""
        self._e2e_ns = int(e2e_ms * 1e6)
        self._ttft_ns = int(ttft_ms * 1e6)
        self._log = log or structlog.get_logger()
        self._tokens = float(BURST)
        self._filled_ns = 0
        self._num_suppressed = 0
        self._num_slow = self._num_unlogged = 0

    def ended(self, record: RequestRecord) -> None:
        """Log the request if it was slow. A rejected one is not: it was answered with the reason."""
        if record.finish == "rejected" or not self._is_slow(record):
            return
        self._num_slow += 1
        if self._may_write(record.arrived_ns + record.e2e_ns):
            self._write(record)
        else:
            self._num_suppressed += 1
            self._num_unlogged += 1

    def counts(self) -> dict[str, float]:
        """For Telemetry.watch."""
        return {
            "slow_requests_total": self._num_slow,
            "slow_requests_not_logged_total": self._num_unlogged,
        }

    def _is_slow(self, record: RequestRecord) -> bool:
        waited_ns = record.e2e_ns if record.ttft_ns is None else record.ttft_ns
        return record.e2e_ns >= self._e2e_ns or waited_ns >= self._ttft_ns

    def _may_write(self, now_ns: int) -> bool:
        """A token bucket."""
        passed_s = max(0, now_ns - self._filled_ns) / 1e9
        self._filled_ns = max(now_ns, self._filled_ns)
        self._tokens = min(BURST, self._tokens + passed_s * LINES_PER_S)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _write(self, record: RequestRecord) -> None:
        suppressed, self._num_suppressed = self._num_suppressed, 0
        span = parse_traceparent(record.trace_parent)
        self._log.warning(
            "slow_request",
            request_id=record.request_id,
            trace_id=span.trace_id if span else None,
            finish=record.finish,
            e2e_ms=_ms(record.e2e_ns),
            ttft_ms=None if record.ttft_ns is None else _ms(record.ttft_ns),
            prompt_tokens=record.num_prompt_tokens,
            cached_tokens=record.num_cached_tokens,
            output_tokens=record.num_output_tokens,
            preemptions=record.num_preemptions,
            dropped_tokens=record.num_dropped_tokens,
            paused_ms=_ms(record.paused_ns),
            longest=longest(record.segments_ns),
            segments_ms=_by_name(record.segments_ns),
            ttft_segments_ms=_by_name(record.ttft_segments_ns),
            suppressed_before=suppressed,
        )


def longest(segments_ns: tuple[int, ...]) -> str:
    """The segment that took the most time."""
    return max(zip(segments_ns, SEGMENTS, strict=True))[1]


def _by_name(segments_ns: tuple[int, ...]) -> dict[str, float]:
    return {name: _ms(value_ns) for name, value_ns in zip(SEGMENTS, segments_ns, strict=False)}


def _ms(value_ns: int) -> float:
    return round(value_ns * _MS, 3)
