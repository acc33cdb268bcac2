"""The end of a run: a table for people, a file for programs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadgen.errors import UsageError
from loadgen.record import Record
from loadgen.summary import Goodput, Lengths, Spread, Summary
from loadgen.traces import Trace
from loadgen.workload import Workload

_DEFINITIONS = {
    "ttft": ("TTFT", "due to first token"),
    "itl": ("ITL", "gap between chunks"),
    "tpot": ("TPOT", "(E2E-TTFT)/(tokens-1)"),
    "e2e": ("E2E", "due to last token"),
    "lateness": ("lateness", "due to sent"),
    "loop_lag": ("loop lag", "delay of 10 ms sleeps"),
}

_CAPTION = "due: the time that the trace gives; lateness and loop lag are the generator's own"


def print_report(console: Console, summary: Summary, trace: Trace, workload: Workload) -> None:
    """Writes the table, what was left out, and the verdict on the generator."""
    for line in _lines(summary, trace, workload):
        console.print(line, soft_wrap=True, highlight=False)
    console.print(_table(summary))
    if summary.goodput is not None:
        console.print(_goodput_line(summary.goodput, summary.num_sent), soft_wrap=True, highlight=False)
    console.print(_verdict(summary), soft_wrap=True, highlight=False)


def write_json(
    path: Path,
    config: dict[str, Any],
    summary: Summary,
    trace: Trace,
    workload: Workload,
    records: list[Record],
) -> None:
    """Everything needed to compute the report again, each request included. Written whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    result = {
        "config": config,
        "trace": {
            "path": str(trace.path),
            "format": trace.format,
            "sha256": trace.sha256,
            "rows_read": trace.num_read,
            "rows_dropped": trace.dropped,
            "rows_clamped_input": workload.num_clamped_input,
            "rows_clamped_output": workload.num_clamped_output,
            "notes": trace.notes,
        },
        "summary": summary,
        "requests": [record.as_dict() for record in sorted(records, key=lambda record: record.index)],
    }
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(msgspec.json.encode(result))
        part.replace(path)
    except OSError as error:
        raise UsageError(f"--json {path}: cannot be written: {error.strerror}") from error


def _lines(summary: Summary, trace: Trace, workload: Workload) -> Iterator[str]:
    """What stands above the table."""
    yield _requests_line(summary)
    for reason, count in summary.failures.items():
        yield f"  [red]failed {escape(reason)}: {count}[/], first: {escape(summary.failure_examples[reason])}"
    yield _trace_line(trace, workload)
    for note in trace.notes:
        yield f"  note: {escape(note)}"
    yield _tokens_line("input", summary.input, summary.input_tokens_per_s)
    yield _tokens_line("output", summary.output, summary.output_tokens_per_s)
    if summary.num_without_usage:
        yield f"  note: {summary.num_without_usage} answers had no usage; a chunk counted as one token"


def _requests_line(summary: Summary) -> str:
    unsent = summary.num_planned - summary.num_sent
    return (
        f"[bold]{summary.num_sent} requests[/]: {summary.num_finished} finished, "
        f"{summary.num_sent - summary.num_finished} failed"
        + (f", {unsent} of the plan not sent" if unsent else "")
        + f"; {summary.wall_s:.1f} s, {summary.requests_per_s:.2f} finished/s"
    )


def _trace_line(trace: Trace, workload: Workload) -> str:
    dropped = ", ".join(f"{reason}: {count}" for reason, count in trace.dropped.items()) or "none"
    return (
        f"trace: {trace.format}, {trace.num_read} rows, dropped {dropped}; of {len(workload.jobs)} used, "
        f"clamped {workload.num_clamped_input} in input, {workload.num_clamped_output} in output"
    )


def _tokens_line(name: str, lengths: Lengths, per_s: float) -> str:
    off = 100 * (lengths.actual / lengths.planned - 1) if lengths.planned else 0.0
    return (
        f"{name}: {per_s:.1f} tok/s; {lengths.actual} tokens of {lengths.planned} planned ({off:+.2f} %), "
        f"{lengths.num_off} requests off"
    )


def _table(summary: Summary) -> Table:
    table = Table(
        "ms", "mean", "p50", "p90", "p99", "max", "measured as", caption=_CAPTION, caption_justify="left"
    )
    for column in table.columns[1:6]:
        column.justify = "right"
    for name, (title, what) in _DEFINITIONS.items():
        table.add_row(title, *_cells(getattr(summary, name)), what)
    return table


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * 5
    values = (spread.mean_ms, spread.p50_ms, spread.p90_ms, spread.p99_ms, spread.max_ms)
    return [f"{value:.1f}" for value in values]


def _goodput_line(good: Goodput, num_sent: int) -> str:
    return (
        f"goodput ({good.slo}): {good.num_met} of {num_sent} sent ({good.offered_pct:.1f} %, "
        f"a failure is a miss), {good.requests_per_s:.2f} requests/s of wall time"
    )


def _verdict(summary: Summary) -> str:
    if summary.client_bound:
        return f"[bold red]CLIENT-BOUND[/]: {'; '.join(summary.client_bound)}: do not trust these numbers"
    return "[green]generator kept time[/]: lateness and loop lag are within their limits"
