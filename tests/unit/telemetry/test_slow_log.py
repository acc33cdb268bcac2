from typing import Any

import pytest
from structlog.testing import capture_logs

from pipeline.messages import SEGMENTS
from pipeline.telemetry.slow_log import BURST, LINES_PER_S, SlowLog
from tests.unit.telemetry.records import MS, rejected, request, unserved

S = 1000 * MS


def lines(slow: SlowLog, *records: Any) -> list[Any]:
    with capture_logs() as found:
        for record in records:
            slow.ended(record)
    return found


def test_a_line_tells_where_the_time_went() -> None:
    record = request(trace_parent=f"00-{'a' * 32}-{'b' * 16}-01", paused_ns=3 * MS)
    (line,) = lines(SlowLog(200, 10_000), record)
    segments = {name: line["segments_ms"].pop(name) for name in SEGMENTS}
    first = {name: line["ttft_segments_ms"].pop(name) for name in SEGMENTS}
    assert sum(segments.values()) == line["e2e_ms"] == 208.0
    assert sum(first.values()) == line["ttft_ms"] == 55.0
    assert line == {
        "event": "slow_request",
        "log_level": "warning",
        "request_id": 7,
        "trace_id": "a" * 32,
        "finish": "stop",
        "e2e_ms": 208.0,
        "ttft_ms": 55.0,
        "prompt_tokens": 100,
        "cached_tokens": 96,
        "output_tokens": 8,
        "preemptions": 1,
        "dropped_tokens": 0,
        "paused_ms": 3.0,
        "longest": "execute.service",
        "segments_ms": {},
        "ttft_segments_ms": {},
        "suppressed_before": 0,
    }


@pytest.mark.parametrize(
    ("e2e_ms", "ttft_ms", "is_slow"),
    [(208, 1000, True), (209, 1000, False), (1000, 55, True), (1000, 56, False), (0, 1000, True)],
)
def test_thresholds(e2e_ms: float, ttft_ms: float, is_slow: bool) -> None:
    assert bool(lines(SlowLog(e2e_ms, ttft_ms), request())) is is_slow


def test_one_that_never_got_its_first_token_waited_for_it_all_its_life() -> None:
    (line,) = lines(SlowLog(1000, 208), unserved())
    assert line["ttft_ms"] is None and line["ttft_segments_ms"] == {} and line["trace_id"] is None
    assert not lines(SlowLog(1000, 209), unserved())


def test_a_rejected_one_is_not_slow() -> None:
    slow = SlowLog(0, 0)
    assert not lines(slow, rejected())
    assert slow.counts() == {"slow_requests_total": 0, "slow_requests_not_logged_total": 0}


def test_a_flood_gives_a_trickle_and_none_is_forgotten() -> None:
    slow = SlowLog(0, 0)
    flood = [request(arrived_ns=i * MS) for i in range(1000)]  # a second of them
    found = lines(slow, *flood)
    assert BURST <= len(found) <= BURST + LINES_PER_S + 1
    (after,) = lines(slow, request(arrived_ns=10 * S))
    told = len(found) + 1 + sum(line["suppressed_before"] for line in [*found, after])
    assert told == 1001 == slow.counts()["slow_requests_total"]
    assert slow.counts()["slow_requests_not_logged_total"] == 1001 - len(found) - 1


def test_requests_that_ended_out_of_order_do_not_refill_the_bucket() -> None:
    slow = SlowLog(0, 0)
    found = lines(slow, *[request(arrived_ns=at) for _ in range(BURST) for at in (5 * S, 4 * S)])
    assert len(found) == BURST
