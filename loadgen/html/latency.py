"""Charts of how long requests took."""

from collections.abc import Callable

from loadgen.buckets import Bucket, by_input, by_output
from loadgen.html.axis import Axis, fitted
from loadgen.html.plot import Mark, Point, bars, chart, figure, line, thinned
from loadgen.html.tables import table
from loadgen.record import Record
from loadgen.summary import Spread

_PERCENT = Axis(0.0, 100.0)
_TICK, _ROW_PX = 3.0, 32
_Value = Callable[[Record], float | None]


def ttft(records: list[Record]) -> str:
    what = "share of requests whose first token came within so long; raw counts from the time really sent"
    series = [("from due (corrected)", "c1", _ms(records, lambda record: record.ttft_s))]
    return _cdf("Time to first token", what, [*series, _raw(records, lambda record: record.raw_ttft_s)])


def e2e(records: list[Record]) -> str:
    what = "share of requests whose last token came within so long"
    series = [("from due (corrected)", "c1", _ms(records, lambda record: record.e2e_s))]
    return _cdf("End-to-end time", what, [*series, _raw(records, lambda record: record.raw_e2e_s)])


def tpot(records: list[Record]) -> str:
    what = "(end to end - first token) / (output tokens - 1), one value per request"
    return _cdf("Time per output token", what, [("TPOT", "c2", _ms(records, lambda record: record.tpot_s))])


def itl(records: list[Record]) -> str:
    gaps = sorted(1000 * gap for record in records for gap in record.itl_s)
    return _cdf(
        "Gap between chunks",
        "all gaps of all answers; a chunk may hold several tokens",
        [("ITL", "c3", gaps)],
    )


def buckets(title: str, unit: str, found: list[Bucket], metric: str, css: str) -> str:
    """Of each length a bar from p50 to p99 of `metric` (a field of Bucket), and the table of all metrics."""
    spreads = [(bucket.label, getattr(bucket, metric)) for bucket in found]
    drawn = [(label, spread) for label, spread in spreads if spread is not None]
    what = f"{metric.upper()} by {unit}: from p50 to p99, a tick at p90"
    if not drawn:
        return figure(title, what, None, css="wide")
    return figure(title, what, _ranges(drawn, css) + _bucket_table(found, unit), css="wide")


def by_length(records: list[Record]) -> str:
    """Two figures: what the prompt's length does to TTFT, and the answer's to E2E."""
    return buckets("By prompt length", "input tokens", by_input(records), "ttft", "c1") + buckets(
        "By answer length", "output tokens", by_output(records), "e2e", "c2"
    )


def _ms(records: list[Record], value: _Value) -> list[float]:
    """Of the records that have a value, in order."""
    values = (value(record) for record in records)
    return sorted(1000 * found for found in values if found is not None)


def _raw(records: list[Record], value: _Value) -> tuple[str, str, list[float]]:
    return "from sent (raw)", "c4 dashed", _ms(records, value)


def _cdf(title: str, what: str, series: list[tuple[str, str, list[float]]]) -> str:
    """`series` are (name, classes, ordered values in ms)."""
    everything = [value for _, _, values in series for value in values]
    if not everything:
        return figure(title, what, None)
    x = fitted(everything)
    marks = [Mark(name, css, line(_steps(values), x, _PERCENT)) for name, css, values in series]
    return figure(
        title, what, chart(marks, x, _PERCENT, x_unit="ms", y_unit="% of values", has_legend=len(marks) > 1)
    )


def _steps(values: list[float]) -> list[Point]:
    """The empirical distribution: at each value, how many percent are at most it."""
    points = [(value, 100 * rank / len(values)) for rank, value in enumerate(values, start=1)]
    return thinned([(values[0], 0.0), *points])


def _ranges(drawn: list[tuple[str, Spread]], css: str) -> str:
    x = fitted([value for _, spread in drawn for value in (spread.p50_ms, spread.p90_ms, spread.p99_ms)])
    rows = Axis(len(drawn) - 0.5, -0.5)
    spans = [(spread.p50_ms, spread.p99_ms, row) for row, (_, spread) in enumerate(drawn)]
    ticks = [(spread.p90_ms, spread.p90_ms, row) for row, (_, spread) in enumerate(drawn)]
    marks = [
        Mark("p50 to p99", css, bars(spans, x, rows), 8),
        Mark("p90", "ink", bars(ticks, x, rows, _TICK), 14),
    ]
    labels = [(rows.place(row), label.partition(":")[0]) for row, (label, _) in enumerate(drawn)]
    return chart(
        marks,
        x,
        rows,
        x_unit="ms",
        y_unit="tokens",
        css="rows",
        height_px=_ROW_PX * len(drawn),
        y_labels=labels,
    )


def _bucket_table(found: list[Bucket], unit: str) -> str:
    head = [unit, "requests", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "p99", "E2E p50", "p90", "p99"]
    rows = [
        [bucket.label, str(bucket.count), *_cells(bucket.ttft), *_cells(bucket.tpot), *_cells(bucket.e2e)]
        for bucket in found
    ]
    return table(head, rows)


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * 3
    return [f"{value:,.1f}" for value in (spread.p50_ms, spread.p90_ms, spread.p99_ms)]
