"""The end of a tuning: one table per variable, and in words what to take and what it costs."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from loadgen.tune.advice import Advice, Point, advise, grew_most
from loadgen.tune.cells import text
from loadgen.tune.chain import OTHERS, SEGMENT, segments

SATURATED = 1.1
"""A run that lasts this much longer than its requests were sent for, has tested the server's throughput."""

_MOST_OTHERS = 20.0
"""Percent of a core that other work may take before it is said."""

_SHOWN_MS = 1.0
"""A segment whose mean is under this for every value is left out of the table (not of the results)."""

_DIGITS = {
    "output tok/s": 1,
    "goodput %": 1,
    "requests/s": 2,
    "failed": 0,
    "TTFT p50 ms": 0,
    "TTFT p99 ms": 0,
    "ITL p50 ms": 1,
    "ITL p99 ms": 1,
    "TPOT p50 ms": 1,
    "TPOT p99 ms": 1,
    "E2E p50 ms": 0,
    "E2E p99 ms": 0,
    "output tokens/step": 2,
    "all tokens/step": 1,
    "preemptions": 0,
    "KV peak %": 1,
    "device busy %": 1,
    "server CPU %": 0,
    OTHERS: 0,
    "RSS peak MiB": 0,
}
"""The rows in order, and the digits they are printed with."""


def print_variable(
    console: Console, key: str, points: Sequence[Point], objective: str, threshold: float
) -> Advice | None:
    """The table of one variable and what follows from it."""
    advice = advise(key, points, objective, threshold)
    for line in (*_table(key, points, advice), "", *_lines(key, points, objective, advice), ""):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    return advice


def _table(key: str, points: Sequence[Point], advice: Advice | None) -> list[str]:
    """Down a column: the chain from what the clients saw to the segments. Markdown, to be pasted."""
    base = next(point for point in points if point.is_base)
    rows = [[key, *(_head(point, advice) for point in points)]]
    rows += [[measure, *(_cell(point, measure) for point in points)] for measure in _rows(points)]
    rows.append(["grew most, ms a request", *(_growth(base, point) for point in points)])
    rows.append(["generator", *(_generator(point) for point in points)])
    return _markdown(rows)


def _markdown(rows: list[list[str]]) -> list[str]:
    """The first row is the head; all columns but the first stand to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "".join(f" {'-' * (width - bool(i))}{':' * bool(i)} |" for i, width in enumerate(widths))
    lines = ["|" + "".join(f" {cell} |" for cell in _padded(row, widths)) for row in rows]
    return [lines[0], "|" + rule, *lines[1:]]


def _padded(row: list[str], widths: list[int]) -> list[str]:
    first, *others = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]


def _head(point: Point, advice: Advice | None) -> str:
    marks = [word for word, is_so in (("base", point.is_base), ("take", _is_taken(point, advice))) if is_so]
    return text(point.value) + (f" ({', '.join(marks)})" if marks else "")


def _is_taken(point: Point, advice: Advice | None) -> bool:
    return advice is not None and text(point.value) == text(advice.take)


def _rows(points: Sequence[Point]) -> list[str]:
    """Measures that any value has; behind them the segments that take a while anywhere."""
    known = {name for point in points for name in point.measures}
    found = [
        SEGMENT + name
        for point in points
        for name in segments(point.measures)
        if any(segments(each.measures).get(name, 0.0) >= _SHOWN_MS for each in points)
    ]
    return [name for name in _DIGITS if name in known] + list(dict.fromkeys(found))


def _cell(point: Point, measure: str) -> str:
    """Mean and half of the range over the repeats."""
    stat = point.stat(measure)
    if stat is None:
        return "failed" if point.result.failure is not None else "-"
    digits = _DIGITS.get(measure, 1)
    spread = f" ±{stat.half_range:.{digits}f}" if len(point.result.evidence) > 1 else ""
    return f"{stat.mean:.{digits}f}{spread}"


def _growth(base: Point, point: Point) -> str:
    grown = None if point is base else grew_most(base, point)
    return "-" if grown is None else f"{grown[0]} +{grown[1]:.1f}"


def _generator(point: Point) -> str:
    runs = point.result.runs
    bound = sum(bool(run.client_bound) for run in runs)
    if len(point.result.evidence) < len(runs):
        return f"kept time; {bound} runs left out"
    return f"CLIENT-BOUND {bound} of {len(runs)}" if bound else "kept time"


def _lines(key: str, points: Sequence[Point], objective: str, advice: Advice | None) -> Iterator[str]:
    if advice is None:
        yield f"{key}: no advice: the base, or every other value, has no result"
    else:
        yield from advice.sentences
    for point in points:
        if point.result.failure is not None:
            yield f"{key} = {text(point.value)} failed: {point.result.failure}"
    yield from _warnings(key, points, objective)


def _warnings(key: str, points: Sequence[Point], objective: str) -> Iterator[str]:
    repeats = [repeat for point in points for repeat in point.result.evidence]
    bound = sum(bool(repeat.client_bound) for repeat in repeats)
    if bound:
        yield (
            f"{key}: {bound} of {len(repeats)} runs are CLIENT-BOUND: their numbers may be the generator's"
        )
    others = max((repeat.measures.get(OTHERS, 0.0) for repeat in repeats), default=0.0)
    if others > _MOST_OTHERS:
        yield (
            f"{key}: other work took up to {others:.0f} % of a core meanwhile: a difference may be its doing"
        )
    idle = [point for point in points if point.result.evidence and not _is_saturated(point)]
    if idle and objective == "output tok/s":
        names = ", ".join(text(point.value) for point in idle)
        yield (
            f"{key}: the server kept up with the workload at {names}, so that its tok/s there is what was "
            "offered: send faster, or judge by --slo"
        )


def _is_saturated(point: Point) -> bool:
    return any(repeat.wall_s > SATURATED * repeat.span_s for repeat in point.result.evidence)
