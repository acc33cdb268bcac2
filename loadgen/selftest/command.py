"""The selftest command: is this machine's generator fast enough for a load?"""

import argparse
import sys
from collections.abc import Callable

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from loadgen.clients import PROTOCOLS
from loadgen.numbers import count, positive
from loadgen.selftest.measure import Figures, Load, measure

SUSTAINED, TOO_MUCH = 0, 1

_EXPLANATION = """\
Starts a fake server in a process of its own and sends it requests as replay does: Poisson, at --rate, of
--tokens tokens each, 20 ms apart, one frame or event a token. Says what this generator sustained, on one
core where the system can bind it to one. Asked for are rate x tokens chunks/s. Needs no server and no trace.
exit codes: 0 sustained; 1 the generator was too slow (client-bound), or requests failed
"""


def add_selftest(command: argparse.ArgumentParser) -> None:
    """The command's options."""
    command.description = _EXPLANATION
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    add = command.add_argument
    add("--protocol", choices=[*PROTOCOLS, "both"], default="both", help="default: both, one after the other")
    add("--rate", type=positive, default=2000.0, metavar="R", help="requests/s started (default 2000)")
    add("--tokens", type=count, default=25, metavar="N", help="tokens of each answer (default 25)")
    add("--seconds", type=positive, default=5.0, metavar="S", help="of sending (default 5)")
    add("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace, console: Console) -> int:
    protocols = PROTOCOLS if arguments.protocol == "both" else [arguments.protocol]
    found = []
    for protocol in protocols:
        load = Load(protocol, arguments.rate, arguments.tokens, arguments.seconds)
        found.append(uvloop.run(measure(load)))
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        _print(console, found)
    is_sustained = all(not figures.client_bound and not figures.num_failed for figures in found)
    return SUSTAINED if is_sustained else TOO_MUCH


def _print(console: Console, found: list[Figures]) -> None:
    table = Table("", *(figures.load.protocol for figures in found))
    for column in table.columns[1:]:
        column.justify = "right"
    for title, cell in _ROWS.items():
        table.add_row(title, *(cell(figures) for figures in found))
    console.print(table)
    for figures in found:
        console.print(_verdict(figures), soft_wrap=True, highlight=False)


_ROWS: dict[str, Callable[[Figures], str]] = {
    "requests/s started": lambda figures: f"{figures.requests_per_s:,.0f}",
    "chunks/s received": lambda figures: f"{figures.chunks_per_s:,.0f}",
    "failed": lambda figures: str(figures.num_failed),
    "generator's CPU, of a core": lambda figures: f"{100 * figures.cpu_share:.0f} %",
    "CPU per chunk, requests included": lambda figures: f"{figures.us_per_chunk:.1f} us",
    "lateness p99": lambda figures: f"{figures.p99_lateness_ms:.2f} ms",
    "loop lag p99": lambda figures: f"{figures.p99_loop_lag_ms:.2f} ms",
}


def _verdict(figures: Figures) -> str:
    load = figures.load
    what = f"{load.protocol}: {load.rate:g} requests/s of {load.tokens} tokens"
    if figures.client_bound:
        return f"[bold red]CLIENT-BOUND[/] {what}: {'; '.join(figures.client_bound)}"
    return f"[green]sustained[/] {what}"
