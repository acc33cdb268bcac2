import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from structlog.testing import capture_logs

from pipeline.telemetry.span_export import MAX_BATCH, SpanExport, Trace
from tests.unit.telemetry.records import request

SAMPLED = f"00-{'a' * 32}-{'b' * 16}-01"
NOT_SAMPLED = f"00-{'a' * 32}-{'b' * 16}-00"


class FakeSender:
    """Keeps what it is sent; hangs while `go_on` is unset; fails while `fails` is set."""

    def __init__(self) -> None:
        self.batches: list[list[Trace]] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.is_busy = threading.Event()
        self.fault: Exception | None = None
        self.is_refused = False
        self.is_closed = False

    def send(self, traces: Sequence[Trace]) -> bool:
        self.is_busy.set()
        self.go_on.wait(30)
        if self.fault:
            raise self.fault
        if not self.is_refused:
            self.batches.append(list(traces))
        return not self.is_refused

    def close(self) -> None:
        self.is_closed = True


def until(condition: Callable[[], bool], within_s: float = 10) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def exporting(body: Callable[[SpanExport], Any], sender: FakeSender, **options: Any) -> SpanExport:
    """Run `body` between start and stop."""
    export = SpanExport(sender, "smol", **{"delay_s": 0.0} | options)

    async def main() -> None:
        await export.start()
        try:
            body(export)
        finally:
            await export.stop()

    asyncio.run(main())
    return export


def test_only_requests_of_sampled_traces_are_sent() -> None:
    sender = FakeSender()

    def body(export: SpanExport) -> None:
        for trace_parent in (SAMPLED, NOT_SAMPLED, ""):
            export.ended(request(trace_parent=trace_parent, parent_span_id="c" * 16))

    export = exporting(body, sender)
    (((own, parent_span_id, spans),),) = sender.batches
    assert (str(own), parent_span_id, spans[0].name) == (SAMPLED, "c" * 16, "chat smol")
    assert export.counts()["traces_exported_total"] == 1
    assert sender.is_closed


def test_stop_sends_at_once_what_waits_for_company() -> None:
    sender = FakeSender()
    begun = time.monotonic()
    exporting(lambda export: export.ended(request(trace_parent=SAMPLED)), sender, delay_s=60.0)
    assert len(sender.batches) == 1
    assert time.monotonic() - begun < 30


def test_a_full_batch_does_not_wait() -> None:
    sender = FakeSender()

    def body(export: SpanExport) -> None:
        for _ in range(MAX_BATCH):
            export.ended(request(trace_parent=SAMPLED))
        until(lambda: bool(sender.batches))

    exporting(body, sender, delay_s=60.0)
    assert [len(batch) for batch in sender.batches] == [MAX_BATCH]


def test_a_sender_that_hangs_costs_spans_and_nothing_else() -> None:
    sender = FakeSender()

    def body(export: SpanExport) -> None:
        sender.go_on.clear()
        export.ended(request(trace_parent=SAMPLED))
        until(sender.is_busy.is_set)
        for _ in range(5):
            export.ended(request(trace_parent=SAMPLED))
        assert export.counts() == {
            "traces_exported_total": 0,
            "traces_dropped_total": 2,
            "traces_failed_total": 0,
            "traces_queued": 3,
        }
        sender.go_on.set()

    export = exporting(body, sender, max_queued=3)
    assert export.counts()["traces_exported_total"] == 4


def test_a_sender_that_hangs_at_the_end_is_left_behind_with_a_word() -> None:
    sender = FakeSender()

    def body(export: SpanExport) -> None:
        sender.go_on.clear()
        export.ended(request(trace_parent=SAMPLED))
        until(sender.is_busy.is_set)
        export.ended(request(trace_parent=SAMPLED))

    with capture_logs() as lines:
        exporting(body, sender, flush_s=0.05)
    assert sender.is_closed
    assert [(line["event"], line["queued"]) for line in lines] == [("traces_lost", 1)]
    sender.go_on.set()


def test_failures_are_counted_and_told_once() -> None:
    sender = FakeSender()

    def send(export: SpanExport) -> None:
        before = sum(export.counts().values())
        export.ended(request(trace_parent=SAMPLED))
        until(lambda: sum(export.counts().values()) == before + 1 and not export.counts()["traces_queued"])

    def body(export: SpanExport) -> None:
        sender.fault = ValueError("not even an answer")
        send(export)
        sender.fault, sender.is_refused = None, True
        send(export)
        sender.is_refused = False
        send(export)

    with capture_logs() as lines:
        export = exporting(body, sender)
    assert [line["event"] for line in lines] == ["span_export_fails", "span_export_works_again"]
    assert "not even an answer" in lines[0]["error"]
    assert export.counts() == {
        "traces_exported_total": 1,
        "traces_dropped_total": 0,
        "traces_failed_total": 2,
        "traces_queued": 0,
    }


def test_it_can_be_stopped_before_it_has_started_and_twice() -> None:
    async def main() -> None:
        export = SpanExport(FakeSender(), "smol")
        await export.stop()
        await export.start()
        await export.stop()
        await export.stop()

    asyncio.run(main())
