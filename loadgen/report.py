"""The end of a run on the terminal: what was sent, how long it took, and whether to believe it."""

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadgen.buckets import Bucket, by_input, by_output
from loadgen.record import Record
from loadgen.result import Result, TraceFacts
from loadgen.summary import Lengths, Spread, Summary
from loadgen.terminal_stages import print_stages
from loadgen.verify import Verification

_DEFINITIONS = {
    "ttft": ("TTFT", "due to first token"),
    "raw_ttft": ("  raw", "sent to first token"),
    "itl": ("ITL", "gap between chunks"),
    "tpot": ("TPOT", "(E2E-TTFT)/(tokens-1)"),
    "e2e": ("E2E", "due to last token"),
    "raw_e2e": ("  raw", "sent to last token"),
    "lateness": ("lateness", "due to sent"),
    "loop_lag": ("loop lag", "delay of 10 ms sleeps"),
}
_CAPTION = "due: the time that the trace gives; lateness and loop lag are the generator's own"
_SHOWN_MISMATCHES = 10


def print_report(console: Console, result: Result) -> None:
    """Writes the tables, what was left out, and the verdicts."""
    summary = result.summary
    for line in _lines(result):
        console.print(line, soft_wrap=True, highlight=False)
    console.print(_table(summary))
    _print_buckets(console, result.requests)
    print_stages(console, result.requests)
    for line in goodput_lines(summary):
        console.print(escape(line), soft_wrap=True, highlight=False)
    if result.verification is not None:
        _print_verification(console, result.verification)
    style = "bold red" if summary.client_bound else "green"
    console.print(verdict(summary), soft_wrap=True, highlight=False, markup=False, style=style)


def goodput_lines(summary: Summary) -> list[str]:
    """Nothing without an SLO."""
    good = summary.goodput
    if good is None:
        return []
    lines = [
        f"goodput ({good.slo}): {good.num_met} of {summary.num_sent} sent: {good.attained_pct:.1f} % of "
        f"those the server took (a failure is a miss), {good.offered_pct:.1f} % of all offered, "
        f"shed {good.shed_pct:.1f} %; {good.requests_per_s:.2f} requests/s of wall time"
    ]
    if good.slo.percentile is not None:
        lines.append(f"SLO missed: {'; '.join(good.broken)}" if good.broken else "SLO held")
    return lines


def verdict(summary: Summary) -> str:
    """Whether the generator itself was fast enough."""
    cpu = "" if summary.cpu_pct is None else f"; it used {summary.cpu_pct:.0f} % of a core"
    if summary.client_bound:
        return f"CLIENT-BOUND: {'; '.join(summary.client_bound)}: do not trust these numbers{cpu}"
    return f"generator kept time: lateness and loop lag are within their limits{cpu}"


def verification_line(found: Verification) -> str:
    """One sentence."""
    done = (
        f"{found.num_whole} whole and {found.num_partial} partial answers against "
        f"{found.num_prompts} prompts replayed alone"
    )
    if found.is_clean:
        return f"verified: {done}, every text the same"
    return (
        f"NOT VERIFIED: {done}: {len(found.mismatches)} differ, "
        f"{len(found.unanswered)} prompts got no answer alone"
    )


def trace_line(trace: TraceFacts) -> str:
    """What became of the rows."""
    dropped = ", ".join(f"{reason}: {count}" for reason, count in trace.rows_dropped.items()) or "none"
    return (
        f"{trace.format}, {trace.rows_read} rows, dropped {dropped}; of {trace.rows_used} used, "
        f"clamped {trace.rows_clamped_input} in input, {trace.rows_clamped_output} in output"
    )


def tokens_line(lengths: Lengths, per_s: float) -> str:
    """Planned against actual."""
    off = 100 * (lengths.actual / lengths.planned - 1) if lengths.planned else 0.0
    return (
        f"{per_s:.1f} tok/s; {lengths.actual} tokens of {lengths.planned} planned ({off:+.2f} %), "
        f"{lengths.num_off} requests off"
    )


def _lines(result: Result) -> Iterator[str]:
    """What stands above the table."""
    summary = result.summary
    yield _requests_line(summary)
    for reason, count in summary.failures.items():
        yield f"  [red]failed {escape(reason)}: {count}[/], first: {escape(summary.failure_examples[reason])}"
    yield f"trace: {escape(trace_line(result.trace))}"
    for note in result.trace.notes:
        yield f"  note: {escape(note)}"
    yield f"input: {tokens_line(summary.input, summary.input_tokens_per_s)}"
    yield f"output: {tokens_line(summary.output, summary.output_tokens_per_s)}"
    if summary.num_without_usage:
        yield f"  note: {summary.num_without_usage} answers had no usage; a chunk counted as one token"
    yield f"workload sha256 {result.workload.sha256}"


def _requests_line(summary: Summary) -> str:
    unsent = summary.num_planned - summary.num_sent
    shed = f" ({summary.num_shed} of them shed)" if summary.num_shed else ""
    return (
        f"[bold]{summary.num_sent} requests[/]: {summary.num_finished} finished, "
        f"{sum(summary.failures.values())} failed{shed}"
        + (f", {summary.num_abandoned} abandoned" if summary.num_abandoned else "")
        + (f", {summary.num_cancelled} cancelled by the client" if summary.num_cancelled else "")
        + (f", {unsent} of the plan not sent" if unsent else "")
        + f"; {summary.wall_s:.1f} s, {summary.requests_per_s:.2f} finished/s"
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


def _print_buckets(console: Console, records: list[Record]) -> None:
    """Only where there is more than one length to tell apart."""
    for unit, found in (("input tokens", by_input(records)), ("output tokens", by_output(records))):
        if len(found) > 1:
            console.print(_bucket_table(unit, found))


def _bucket_table(unit: str, found: list[Bucket]) -> Table:
    table = Table(unit, "requests", "TTFT p50", "p99", "TPOT p50", "p99", "E2E p50", "p99")
    for column in table.columns[1:]:
        column.justify = "right"
    for bucket in found:
        spreads = (bucket.ttft, bucket.tpot, bucket.e2e)
        cells = (["-", "-"] if s is None else [f"{s.p50_ms:.1f}", f"{s.p99_ms:.1f}"] for s in spreads)
        table.add_row(bucket.label, str(bucket.count), *(cell for pair in cells for cell in pair))
    return table


def _print_verification(console: Console, found: Verification) -> None:
    style = "green" if found.is_clean else "bold red"
    console.print(verification_line(found), soft_wrap=True, highlight=False, markup=False, style=style)
    for mismatch in found.mismatches[:_SHOWN_MISMATCHES]:
        for line in (
            f"  request {mismatch.index}, character {mismatch.at}",
            f"    under load {mismatch.under_load}",
            f"    alone      {mismatch.alone}",
        ):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    if len(found.mismatches) > _SHOWN_MISMATCHES:
        console.print(f"  and {len(found.mismatches) - _SHOWN_MISMATCHES} more, in result.json")
    for line in found.unanswered:
        console.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)
