"""The describe command: what a trace holds and how it is shaped, without a server."""

from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from loadgen.traces import ReadOptions, Trace, load
from loadgen.traces.shape import Arrivals, Quantiles, Sessions, Shape, Sharing, measure

_NONE = "-"


class Description(msgspec.Struct, frozen=True):
    """What `describe --json` prints."""

    path: str
    format: str
    sha256: str
    rows_read: int
    rows_dropped: dict[str, int]
    notes: list[str]
    usable: Shape
    """Of the rows that a replay sends."""
    recorded: Shape
    """Of all rows, dropped ones too; the sessions are those of the usable rows."""


def describe(path: Path, form: str | None, options: ReadOptions) -> Description:
    """Reads and measures a trace.

    Raises:
        LoadgenError: as `load`.
    """
    trace = load(path, form, options)
    usable = measure(trace.rows, is_timed=trace.is_timed)
    return Description(
        path=str(path),
        format=trace.format,
        sha256=trace.sha256,
        rows_read=trace.num_read,
        rows_dropped=trace.dropped,
        notes=trace.notes,
        usable=usable,
        recorded=_recorded(trace, usable),
    )


def print_description(console: Console, found: Description) -> None:
    """The table: one column, or two where dropped rows change the shape."""
    dropped = ", ".join(f"{reason}: {count}" for reason, count in found.rows_dropped.items()) or "none"
    for line in (
        f"{found.path}: {found.format}, {found.rows_read} rows, dropped {dropped}",
        f"sha256 {found.sha256}",
        *(f"note: {note}" for note in found.notes),
    ):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    shapes = {"usable": found.usable} | ({"recorded": found.recorded} if found.rows_dropped else {})
    table = Table("", *shapes)
    columns = [dict(_lines(shape)) for shape in shapes.values()]
    for name in columns[0]:
        table.add_row(name, *(column.get(name, _NONE) for column in columns))
    console.print(table)


def _recorded(trace: Trace, usable: Shape) -> Shape:
    if not trace.dropped_rows:
        return usable
    everyone = [*trace.rows, *(dropped.row for dropped in trace.dropped_rows)]
    alone = [msgspec.structs.replace(row, after=None) for row in everyone]
    alone.sort(key=lambda row: row.at_ns)
    return msgspec.structs.replace(measure(alone, is_timed=trace.is_timed), sessions=usable.sessions)


def _lines(shape: Shape) -> list[tuple[str, str]]:
    return [
        ("rows", str(shape.num_rows)),
        ("input tokens p50/p90/p99/max", _quantiles(shape.input)),
        ("output tokens p50/p90/p99/max", _quantiles(shape.output)),
        *_arrivals(shape.arrivals),
        *_sharing(shape.sharing),
        *_sessions(shape.sessions),
    ]


def _quantiles(found: Quantiles | None) -> str:
    if found is None:
        return _NONE
    return f"{found.p50:.0f}/{found.p90:.0f}/{found.p99:.0f}/{found.max}"


def _arrivals(found: Arrivals | None) -> list[tuple[str, str]]:
    if found is None:
        return [("span", "no times")]
    return [
        ("span", f"{found.span_s:,.0f} s"),
        ("req/s", _digits(found.requests_per_s)),
        ("gap CV", _digits(found.gap_cv)),
        ("IoD 1 s", _digits(found.iod_1s)),
        ("distinct times", f"{found.num_times}, at most {found.max_tied} rows on one"),
        ("ties", f"{found.num_ties} of {_num_gaps(found)} neighbours share their time"),
    ]


def _num_gaps(found: Arrivals) -> int:
    return found.num_times - 1 + found.num_ties


def _sharing(found: Sharing | None) -> list[tuple[str, str]]:
    if found is None:
        return [("repeat blocks", _NONE), ("prefix-hit tokens", _NONE)]
    return [
        ("repeat blocks", f"{found.repeat_share:.3f} of {found.num_blocks}"),
        ("prefix-hit tokens", f"{found.prefix_hit_share:.3f}"),
    ]


def _sessions(found: Sessions | None) -> list[tuple[str, str]]:
    if found is None:
        return [("sessions", _NONE)]
    thought = f"{found.num_with_think_time} with a think time"
    return [
        (
            "sessions",
            f"{found.num_sessions}; {found.num_followers} rows follow an answer ({thought}), "
            f"at most {found.longest} in a chain",
        )
    ]


def _digits(value: float | None) -> str:
    return _NONE if value is None else f"{value:#.3g}"
