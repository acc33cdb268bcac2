"""`loadgen tune`: the cells one after another, resumable, and a report."""

import argparse
import asyncio
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from rich.console import Console

from loadgen.errors import UsageError
from loadgen.interrupts import Interrupted, cancel_on_signals
from loadgen.replay import FINISHED, INTERRUPTED, SOME_FAILED, Options
from loadgen.server_process import Patience
from loadgen.traces import load
from loadgen.tune.advice import points_of
from loadgen.tune.cell_run import Work, run_cell
from loadgen.tune.cells import Cell, Grid, Value, grid, parse_variable, same
from loadgen.tune.report import print_variable
from loadgen.tune.store import CellResult, Store
from loadgen.workload import plan

_OVERHEAD_S = 15.0
"""Guessed, of a cell: its server's start and stop, and the measuring of the prompts' text."""
_VERSION_S = 60.0


class Tuning(msgspec.Struct, frozen=True):
    """What is asked for."""

    grid: Grid
    work: Work
    store: Store
    span_s: float
    """How long the workload's requests are sent."""
    objective: str
    """The measure that a value is chosen by."""
    threshold: float


def run(arguments: argparse.Namespace, options: Options, console: Console) -> int:
    """The command; `options` without a target.

    Raises:
        LoadgenError: a file or an option cannot be used.
    """
    return uvloop.run(tune(_tuning(arguments, options), console))


async def tune(tuning: Tuning, console: Console) -> int:
    """Runs the cells that are not finished, reports, and returns the exit code."""
    for line in _intent(tuning):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    results: list[CellResult] = []
    try:
        cancel_on_signals()
        for number, cell in enumerate(tuning.grid.cells, 1):
            results.append(await _result(tuning, cell, number, console))
    except (asyncio.CancelledError, Interrupted):
        console.print(
            f"stopped with {len(results)} of {len(tuning.grid.cells)} cells finished; "
            f"they are in {tuning.store.folder}, and the same command goes on from there",
            soft_wrap=True,
        )
        return INTERRUPTED
    _report(tuning, results, console)
    with (tuning.store.folder / "report.md").open("w", encoding="utf-8") as output:
        _report(tuning, results, Console(file=output, width=200))
    return SOME_FAILED if any(result.failure for result in results) else FINISHED


async def _result(tuning: Tuning, cell: Cell, number: int, console: Console) -> CellResult:
    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    title = f"cell {number} of {len(tuning.grid.cells)}, {cell.name}"
    finished = tuning.store.finished(cell)
    if finished is not None:
        say(f"{title}: finished before, {tuning.store.path(cell, '.json')}")
        return finished
    say(title)
    result = await run_cell(cell, tuning.work, tuning.store, say)
    if result.failure is not None:
        say(f"  failed: {result.failure}")
    return result


def _intent(tuning: Tuning) -> list[str]:
    """What will be done, and how long that takes."""
    cells, work = tuning.grid.cells, tuning.work
    todo = [cell for cell in cells if tuning.store.finished(cell) is None]
    others = " + ".join(f"{len(variable.values) - 1} of {variable.key}" for variable in tuning.grid.variables)
    total_s = len(todo) * (_OVERHEAD_S + work.repeats * tuning.span_s)
    lines = [
        f"{len(cells)} cells: the base + {others}; one variable at a time, {work.repeats} runs a cell",
        f"{len(todo)} to run, about {total_s / 60:.1f} min (runs of {tuning.span_s:.0f} s; "
        "longer where the server cannot keep up)",
    ]
    return lines + [f"note: {note}" for note in tuning.grid.notes]


def _report(tuning: Tuning, results: list[CellResult], console: Console) -> None:
    console.print()
    for variable in tuning.grid.variables:

        def result_of(value: Value, key: str = variable.key) -> CellResult:
            return next(
                (each for each in results if each.variable == key and same(each.value, value)), results[0]
            )

        points = points_of(variable.values, result_of, tuning.grid.base_values[variable.key])
        print_variable(console, variable.key, points, tuning.objective, tuning.threshold)


def _tuning(arguments: argparse.Namespace, options: Options) -> Tuning:
    command = shlex.split(arguments.server)
    if not command:
        raise UsageError("--server: is empty")
    trace = load(options.trace, options.format, options.reading)
    workload = plan(trace, options.limits, options.pacing)
    variables = [parse_variable(text) for text in arguments.vary]
    patience = Patience(arguments.ready_s, arguments.stop_s, arguments.ready_path)
    common = {
        "workload": _workload(options, trace.sha256),
        "server": arguments.server,
        "server_version": _version(command),
        "repeats": arguments.repeats,
    }
    return Tuning(
        grid(_base(arguments.config), variables),
        Work(options, command, arguments.repeats, patience),
        Store(arguments.out, common),
        workload.span_s,
        "output tok/s" if options.slo is None else "goodput %",
        arguments.threshold,
    )


def _workload(options: Options, sha256: str) -> dict[str, Any]:
    """All that decides what is sent, and nothing of where to."""
    fields: dict[str, Any] = msgspec.to_builtins(options, enc_hook=str)
    target = fields.pop("target")
    for name in ("trace", "json", "out", "verify"):
        del fields[name]
    return fields | {"sha256": sha256, "protocol": target["protocol"], "model": target["model"]}


def _base(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"--config {path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: is no TOML: {error}") from error


def _version(command: list[str]) -> str:
    """What the server's program says to --version; a program that does not know it is known by nothing."""
    try:
        asked = subprocess.run(
            [command[0], "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--server: {command[0]} --version: {error}") from error
    return asked.stdout.strip() if asked.returncode == 0 else "unknown"
