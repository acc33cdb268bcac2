"""Span export: ended requests to a collector, by a thread of its own; serving never waits for it.

On the loop a request costs one append. The thread builds the spans, and sends them in batches. A collector
that hangs or refuses fills the bounded queue; what finds no room there is dropped and counted.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import structlog

from pipeline.core.trace_context import SpanContext, parse_traceparent
from pipeline.telemetry.journal import RequestRecord
from pipeline.telemetry.spans import Span, spans_of

MAX_QUEUED = 2048
MAX_BATCH = 128
"""Requests sent at once: some 1000 spans."""
DELAY_S = 1.0
"""How long a request waits for others to be sent with."""
FLUSH_S = 5.0
"""How long a drained server stays for its last spans."""

Trace = tuple[SpanContext, str, list[Span]]
"""The root's own context, its parent's span id or "", and the spans, root first."""


class Sender(Protocol):
    """Brings traces to a collector."""

    def send(self, traces: Sequence[Trace]) -> bool:
        """Whether they arrived; may also raise. May take long, up to a limit of its own."""
        ...

    def close(self) -> None:
        """End a send that is under way, from another thread."""
        ...


class SpanExport:
    """Hears every ended request (Journal.listen). A supervisor.Companion: its stop sends what is left."""

    def __init__(
        self,
        sender: Sender,
        model: str,
        log: structlog.typing.FilteringBoundLogger | None = None,
        *,
        max_queued: int = MAX_QUEUED,
        delay_s: float = DELAY_S,
        flush_s: float = FLUSH_S,
    ) -> None:
        self._sender = sender
        self._model = model
        self._log = log or structlog.get_logger()
        self._max_queued = max_queued
        self._delay_s = delay_s
        self._flush_s = flush_s
        self._queue: deque[tuple[SpanContext, RequestRecord]] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_failing = False
        self._num_sent = self._num_dropped = self._num_failed = 0
        self._thread: threading.Thread | None = None

    def ended(self, record: RequestRecord) -> None:
        """Queue the request if it belongs to a sampled trace. Never waits for the collector."""
        context = parse_traceparent(record.trace_parent)
        if context is None or not context.is_sampled:
            return
        with self._changed:
            if len(self._queue) >= self._max_queued:
                self._num_dropped += 1
                return
            self._queue.append((context, record))
            if len(self._queue) in (1, MAX_BATCH):
                self._changed.notify()

    def counts(self) -> dict[str, float]:
        """For Telemetry.watch; in requests, each with all its spans."""
        return {
            "traces_exported_total": self._num_sent,
            "traces_dropped_total": self._num_dropped,
            "traces_failed_total": self._num_failed,
            "traces_queued": len(self._queue),
        }

    async def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Send what is queued, for at most FLUSH_S; a thread that still hangs then is left behind."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        await asyncio.to_thread(thread.join, self._flush_s)
        self._sender.close()
        if thread.is_alive():
            self._log.warning("traces_lost", queued=len(self._queue), after_s=self._flush_s)

    def _run(self) -> None:
        while batch := self._take():
            self._deliver(batch)

    def _take(self) -> list[tuple[SpanContext, RequestRecord]]:
        """The next batch, [] at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            self._changed.wait_for(
                lambda: len(self._queue) >= MAX_BATCH or self._is_closing, timeout=self._delay_s
            )
            return [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]

    def _deliver(self, batch: list[tuple[SpanContext, RequestRecord]]) -> None:
        fault = "refused"
        try:
            is_sent = self._sender.send(
                [(own, record.parent_span_id, spans_of(record, self._model)) for own, record in batch]
            )
        except Exception as error:
            is_sent, fault = False, repr(error)
        if is_sent:
            self._num_sent += len(batch)
        else:
            self._num_failed += len(batch)
        if is_sent == self._is_failing:
            self._is_failing = not is_sent
            self._tell(fault)

    def _tell(self, fault: str) -> None:
        """A line when it begins to fail and one when it ends, not one a batch."""
        if self._is_failing:
            self._log.warning(
                "span_export_fails", error=fault, hint="stageline_traces_failed_total counts on"
            )
        else:
            self._log.info("span_export_works_again")
