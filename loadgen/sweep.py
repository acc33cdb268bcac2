"""`loadgen sweep`: the same trace at one rate after the other, and how each part of the latency answers.

Nothing is searched: `capacity` does that. A sweep shows the whole curve, the bend included.
"""

import argparse
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from loadgen.capacity.arguments import add_duration, add_gap_cv
from loadgen.capacity.runs import Load
from loadgen.numbers import positive
from loadgen.outputs import check_places, write_all
from loadgen.replay import FINISHED, INTERRUPTED, SOME_FAILED, Options, Run, measure, result_of
from loadgen.slo import Slo
from loadgen.summary import Spread
from loadgen.traces import load as load_trace

DESCRIPTION = "Replays a trace at each of --rates in turn, and prints one row a rate."
EPILOG = """\
example:
  loadgen sweep --trace azure_llm_2023_conv.csv --url http://127.0.0.1:8000 \\
      --max-input 512 --max-output 64 --rates 1,2,4,8 --duration-s 30 --slo ttft=1s,tpot=100ms

exit codes: 0 every request finished; 1 some failed; 2 the trace, the server or an option cannot be used;
130 stopped by Ctrl-C (the rates measured until then are still reported)
"""
_COLUMNS = ("offered/s", "finished/s", "failed", "shed", "output tok/s", "good %")
_LATENCIES = ("TTFT", "ITL", "TPOT", "E2E")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Beside those of the workload and the target."""
    command.add_argument(
        "--rates", required=True, type=parse_rates, metavar="R1,R2,...", help="requests/s, in this order"
    )
    add_duration(command)
    add_gap_cv(command)
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="write each rate's result.json and report.html to DIR/RATE"
    )


def parse_rates(text: str) -> list[float]:
    """`R1,R2,...`, each a positive number and none twice. Raises ArgumentTypeError."""
    rates = [positive(part) for part in text.split(",")]
    if len(set(rates)) < len(rates):
        raise argparse.ArgumentTypeError(f"expected each rate once, got {text!r}")
    return rates


def run(arguments: argparse.Namespace, options: Options, console: Console) -> int:
    """The command. Raises LoadgenError: the trace, the server or an option cannot be used."""
    trace = load_trace(options.trace, options.format, options.reading)
    load = Load(
        options,
        options.slo or Slo({}),
        0.0,
        arguments.duration_s,
        options.limits.rows,
        len(trace.rows),
        arguments.gap_cv,
    )
    return uvloop.run(sweep(load, arguments.rates, console))


async def sweep(load: Load, rates: list[float], console: Console) -> int:
    """Measures each rate with arrivals and prompts of its own; prints, writes, and returns the exit code."""
    out = load.options.out
    check_places(None, out)
    runs: dict[float, Run] = {}
    for number, rate in enumerate(rates):
        console.print(f"{rate:g} requests/s, {load.rows(rate)} requests", highlight=False)
        run = await measure(load.options_at(rate, load.options.seed + number), console)
        runs[rate] = run
        if out is not None:
            check_places(None, out / f"{rate:g}")
            write_all(result_of(run), None, out / f"{rate:g}")
        if run.is_stopped:
            break
    console.print(table(runs))
    for rate, run in runs.items():
        for reason in run.summary.client_bound:
            console.print(f"{rate:g} requests/s is CLIENT-BOUND: {reason}", highlight=False, soft_wrap=True)
    if any(run.is_stopped for run in runs.values()):
        return INTERRUPTED
    return SOME_FAILED if any(run.summary.failures for run in runs.values()) else FINISHED


def table(runs: dict[float, Run]) -> Table:
    """One row a rate; latencies in ms, p50 / p99, from the due time."""
    found = Table(title="ms: p50 / p99 of finished requests, from the due time")
    for column in (*_COLUMNS, *_LATENCIES):
        found.add_column(column, justify="right")
    for run in runs.values():
        found.add_row(*_row(run))
    return found


def _row(run: Run) -> list[str]:
    summary = run.summary
    offered = run.workload.arrivals.rate_per_s
    return [
        "-" if offered is None else f"{offered:.2f}",
        f"{summary.num_finished / summary.wall_s:.2f}" if summary.wall_s else "-",
        str(sum(summary.failures.values()) - summary.num_shed),
        str(summary.num_shed),
        f"{summary.output_tokens_per_s:.1f}",
        "-" if summary.goodput is None else f"{summary.goodput.offered_pct:.1f}",
        *(_both(spread) for spread in (summary.ttft, summary.itl, summary.tpot, summary.e2e)),
    ]


def _both(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.p50_ms:,.0f} / {spread.p99_ms:,.0f}"
