from typing import Any, cast

import pytest

from pipeline.bench.measure import NUM_PARTS, Meter, quantile
from pipeline.bench.report import sparkline, stage_report
from pipeline.bench.result import Queue, StageResult
from pipeline.bench.stand import Stand
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.trace import Trace


def result(**fields: Any) -> StageResult:
    values: dict[str, Any] = {
        "stage": "s", "use": "a:B", "workers": 2, "rate": "max", "messages": 100, "rows": 400, "batches": 50,
        "p50_us": 1.0, "p99_us": 2.0, "busy_s": 2.0, "handled_s": 2.0, "handled_p50_us": 1.0, "wakeups": 50,
        "seconds": 4.0,
    }  # fmt: skip
    return StageResult(**values | fields)


def test_utilisation_is_what_is_asked_over_what_can_be_done() -> None:
    """Two workers take 2 s for what came in 10 s; 400 rows in a second of each are all that they can do."""
    assert result().utilization is None
    assert result(recorded_s=10.0).utilization == pytest.approx(0.1)
    assert result().rows_per_s == 400
    assert result(recorded_s=10.0, at_rows_per_s=200.0).utilization == pytest.approx(0.5)
    assert result(rows=0).us_per_row is None
    assert result(rows=0, at_rows_per_s=200.0).utilization is None


def test_the_report_says_where_it_would_be_the_bottleneck() -> None:
    queue = Queue(1.0, 2.0, 0.5, [0, 1, 4])
    group = stage_report(result(recorded_s=10.0, queue=queue, rows_left_out=3))
    cells = [
        str(cell)
        for table in group.renderables
        for column in cast(Any, table).columns
        for cell in column.cells
    ]
    assert "10.0 x that: 400 rows/s" in cells
    assert " ▂█" in cells
    assert "rows left out: begun before" in cells


def test_depth_over_time_is_that_of_the_queue() -> None:
    """Ten times a part's length: three wait from the second to the fifth part, one of them to the end."""
    inbox: Inbox[Any] = Inbox(8)
    meter = Meter(Stand([], inbox, {}, Trace(1)))
    part_ns = 10
    inbox.taps[0](cast(Any, _taken([10, 12, 14], 45)))
    inbox.taps[0](cast(Any, _taken([46], 46 + part_ns * NUM_PARTS)))
    queue = meter.queue(0, part_ns * NUM_PARTS)
    assert queue is not None
    assert queue.peaks[:6] == [0, 3, 3, 3, 3, 1]
    assert set(queue.peaks[5:]) == {1}
    assert meter.num_batches == 2
    assert meter.queue(10**9, 2 * 10**9) is None


def _taken(sent_ns: list[int], taken_ns: int) -> Any:
    from pipeline.runtime.inbox import Taken

    return Taken([object()] * len(sent_ns), sent_ns, 0, taken_ns)


def test_quantiles_and_bars() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0, 0.5, 0.99)] == [1.0, 2.0, 3.0]
    assert sparkline([0, 0]) == "  "
    assert sparkline([0, 1, 100]) == " ▁█"
