"""Two runs of the same workload: what differs, and what of it is more than noise.

Intervals come from a paired, circular moving-block bootstrap (Kuensch 1989, Politis and Romano 1992): runs
of neighbouring requests are drawn with replacement, the same ones from both runs, since neighbours share
queues and are not independent. They cover what varies within these two runs; how much a server varies
from one run to the next only more runs can show.
"""

import math
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from loadgen.errors import UsageError
from loadgen.record import Record
from loadgen.result import Result

_RESAMPLES = 1000
_LEVEL = 95
_MIN_FOR_P99 = 100
"""Of fewer requests it is the largest value."""
_FIELDS = {
    "due": "due times",
    "lengths": "token lengths",
    "content": "prompts",
    "sessions": "sessions",
    "clients": "client behaviours or seed",
}

_Values = npt.NDArray[np.float64]


class Difference(msgspec.Struct, frozen=True):
    """Of one figure between runs a and b."""

    name: str
    a: float
    b: float
    interval: tuple[float, float] | None
    """Of b - a; None where a run gives only one number."""

    @property
    def is_distinguishable(self) -> bool:
        """The interval holds no zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def refuse_different(a: Result, b: Result) -> None:
    """Raises UsageError if the two runs did not send the same workload, and says what differs."""
    if a.workload != b.workload:
        names = ", ".join(_FIELDS[name] for name in a.workload.differing(b.workload))
        raise UsageError(
            f"the runs sent different workloads ({names} differ: sha256 {a.workload.sha256[:12]} and "
            f"{b.workload.sha256[:12]}), so that their figures cannot be compared"
        )


def compare(a: Result, b: Result, seed: int = 0) -> list[Difference]:
    """Differences of the main figures, latencies in ms. The seed is of the resampling.

    Raises:
        UsageError: the workloads differ, or no request was sent in both runs.
    """
    refuse_different(a, b)
    pairs = _pairs(a, b)
    draws = _draws(len(pairs), seed)
    percents = (50, 90, 99) if len(pairs) >= _MIN_FOR_P99 else (50, 90)
    found: list[Difference] = []
    for title, columns in _latencies_ms(pairs).items():
        found += _differences(f"{title} {{}} ms", columns, percents, draws)
    finished = _columns(pairs, lambda record: 100.0 * record.is_finished)
    found += _differences("finished %", finished, (), draws)
    return [
        *found,
        Difference("output tok/s", a.summary.output_tokens_per_s, b.summary.output_tokens_per_s, None),
        Difference("finished requests/s", a.summary.requests_per_s, b.summary.requests_per_s, None),
    ]


def print_comparison(console: Console, a: Result, b: Result, found: list[Difference]) -> None:
    """The table, and in words which differences are distinguishable from noise."""
    table = Table("", "a", "b", "b - a", f"{_LEVEL} % interval", "")
    for column in table.columns[1:5]:
        column.justify = "right"
    for one in found:
        change = one.b - one.a
        table.add_row(one.name, f"{one.a:.2f}", f"{one.b:.2f}", f"{change:+.2f}", _interval(one), _word(one))
    console.print(table)
    clear = [one.name for one in found if one.is_distinguishable]
    lines = [
        f"distinguishable from noise: {', '.join(clear) or 'nothing'}",
        f"intervals: {_RESAMPLES} paired block resamples of the requests; of 20 figures one is expected to "
        "be outside by chance. Rates are one number a run, and have none.",
    ]
    for name, result in (("a", a), ("b", b)):
        if result.summary.client_bound:
            lines.append(f"{name} is CLIENT-BOUND: {'; '.join(result.summary.client_bound)}")
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _interval(one: Difference) -> str:
    return "-" if one.interval is None else f"{one.interval[0]:+.2f} to {one.interval[1]:+.2f}"


def _word(one: Difference) -> str:
    if one.interval is None:
        return "one number a run"
    if not one.is_distinguishable:
        return "not distinguishable"
    return "[bold]higher[/]" if one.b > one.a else "[bold]lower[/]"


def _pairs(a: Result, b: Result) -> list[tuple[Record, Record]]:
    """Requests that both runs sent, by index. Raises UsageError if there is none."""
    of_b = {record.index: record for record in b.requests}
    pairs = [(record, of_b[record.index]) for record in a.requests if record.index in of_b]
    if not pairs:
        raise UsageError("no request was sent in both runs")
    return pairs


def _latencies_ms(pairs: list[tuple[Record, Record]]) -> dict[str, tuple[_Values, _Values]]:
    """Of the finished requests; NaN for the others."""
    return {
        "TTFT": _columns(pairs, lambda record: _ms(record, record.ttft_s)),
        "E2E": _columns(pairs, lambda record: _ms(record, record.e2e_s)),
        "TPOT": _columns(pairs, lambda record: _ms(record, record.tpot_s)),
        "longest gap": _columns(pairs, lambda record: _ms(record, max(record.itl_s, default=None))),
    }


def _ms(record: Record, value_s: float | None) -> float:
    return 1000 * value_s if record.is_finished and value_s is not None else math.nan


def _columns(pairs: list[tuple[Record, Record]], value: Callable[[Record], float]) -> tuple[_Values, _Values]:
    return np.array([value(a) for a, _ in pairs]), np.array([value(b) for _, b in pairs])


def _draws(count: int, seed: int) -> npt.NDArray[np.int64]:
    """(resamples, count) indices: blocks of neighbours, about the cube root of `count` long."""
    length = max(1, round(count ** (1 / 3)))
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, count, (_RESAMPLES, -(-count // length)))
    blocks = (starts[:, :, None] + np.arange(length)) % count
    return blocks.reshape(_RESAMPLES, -1)[:, :count]


def _differences(
    name: str, columns: tuple[_Values, _Values], percents: tuple[int, ...], draws: npt.NDArray[np.int64]
) -> Iterator[Difference]:
    """Of the mean and of each percentile; `name` has a place for which. Nothing where a run has no value."""
    if any(np.isnan(column).all() for column in columns):
        return
    here = [_figures(column[None, :], percents) for column in columns]
    drawn = [_figures(column[draws], percents) for column in columns]
    for what in here[0]:
        changes = drawn[1][what] - drawn[0][what]
        low, high = np.nanpercentile(changes, ((100 - _LEVEL) / 2, (100 + _LEVEL) / 2)).tolist()
        a, b = (float(figures[what][0]) for figures in here)
        yield Difference(name.format(what), a, b, (low, high))


def _figures(values: _Values, percents: tuple[int, ...]) -> dict[str, _Values]:
    """Mean and percentiles of each row of (m, n) values, (m,) each. NaN is no value; a row may have none."""
    counts = np.count_nonzero(~np.isnan(values), axis=1)
    means = np.where(counts, np.nansum(values, axis=1) / np.maximum(counts, 1), np.nan)
    if not percents:
        return {"mean": means}
    ordered, rows, last = np.sort(values, axis=1), np.arange(len(values)), np.maximum(counts - 1, 0)
    found = {"mean": means}
    for percent in percents:
        ranks = last * percent / 100
        low = ranks.astype(np.int64)
        high = np.minimum(low + 1, last)
        part = ranks - low
        found[f"p{percent}"] = ordered[rows, low] * (1 - part) + ordered[rows, high] * part
    return found
