"""`stageline simulate`: a trace on a device that need not exist, by the server's own scheduler."""

import argparse
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loadgen.errors import LoadgenError
from loadgen.traces import FORMAT_NAMES, load
from pipeline.checkpoint import load_card
from pipeline.cli import Commands
from pipeline.errors import ConfigError
from pipeline.simulate.cells import Cell, find_capacity, run_cell
from pipeline.simulate.devices import DEVICES
from pipeline.simulate.measured import read_measured
from pipeline.simulate.models import MODELS, find_model
from pipeline.simulate.report import report
from pipeline.simulate.slo import Slo, parse_slo
from pipeline.simulate.target import Limits, Target, from_data_sheet, from_measured
from pipeline.simulate.workload import Arrival, at_rate, clamped, from_zero, repeated


def register(commands: Commands) -> None:
    parser = commands.add_parser("simulate", help="plan capacity: a trace on a device that need not exist")
    _add_workload(parser)
    _add_target(parser)
    parser.add_argument(
        "--policy", default="fcfs", metavar="NAME,...", help="one run each (default %(default)s)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of stages.schedule, as config.toml has it; again for more",
    )
    parser.add_argument("--slo", metavar="ttft=1s,...", help="limits of a good answer: ttft, tpot, e2e")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what arrives")
    group.add_argument("--trace", type=Path, required=True, metavar="FILE", help="recorded traffic")
    group.add_argument("--format", metavar="NAME", help=f"default: by content; {', '.join(FORMAT_NAMES)}")
    group.add_argument("--limit", type=_count, metavar="N", help="only the first N requests")
    group.add_argument("--max-input", type=_count, metavar="N", help="cut longer prompts to N tokens")
    group.add_argument("--max-output", type=_count, metavar="N", help="cut longer answers to N tokens")
    group.add_argument("--repeat", type=_count, default=1, metavar="N", help="the trace N times over")
    pace = group.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=_positive, metavar="X", help="mean requests/s; default: as recorded")
    pace.add_argument(
        "--load", type=_positive, metavar="X", help="times what the replicas can bear under fcfs, e.g. 0.9"
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what it runs on")
    group.add_argument(
        "--device", default="h100", metavar="NAME", help=f"{', '.join(DEVICES)}, or a measured .json file"
    )
    group.add_argument(
        "--model", default="llama-3.1-8b", metavar="NAME", help=f"{', '.join(MODELS)}, or a model reference"
    )
    group.add_argument("--dtype", default="bfloat16", help="default: %(default)s")
    group.add_argument("--gpus", type=_count, default=1, metavar="N", help="of a replica, tensor parallel")
    group.add_argument(
        "--replicas", type=_counts, default=[1], metavar="N,...", help="one run each (default 1)"
    )
    group.add_argument("--price", type=_positive, metavar="X", help="of a GPU, $ per hour")
    for name in ("max-num-seqs", "max-num-batched-tokens", "block-size", "num-blocks", "max-model-len"):
        group.add_argument(f"--{name}", type=_count, metavar="N", help="as in config.toml")


def run(args: argparse.Namespace) -> int:
    """Simulate every policy on every number of replicas. Raises ConfigError."""
    target = _target(args)
    workload = _workload(args)
    slo = parse_slo(args.slo) if args.slo else Slo()
    base = _options(args.set)
    capacity = find_capacity(workload, target, base | {"policy": "fcfs"}) if args.load else None
    figures = []
    cells = [
        Cell(policy, base | {"policy": policy}, replicas)
        for replicas in args.replicas
        for policy in args.policy.split(",")
    ]
    with _progress(len(workload) * args.repeat * len(cells)) as progress:
        for number, cell in enumerate(cells):
            paced = repeated(_paced(workload, args, cell, capacity), args.repeat)
            done = number * len(paced)
            figures.append(run_cell(cell, paced, target, slo, partial(progress, done)))
    if args.json:
        values = {"target": target.name, "capacity_per_replica": capacity, "cells": figures}
        print(msgspec.json.format(msgspec.json.encode(values)).decode())
    else:
        Console().print(report(target, figures))
    return 0


def _target(args: argparse.Namespace) -> Target:
    limits = Limits(
        args.max_num_seqs, args.max_num_batched_tokens, args.block_size, args.num_blocks, args.max_model_len
    )
    if args.device.endswith(".json"):
        return from_measured(read_measured(Path(args.device)), limits, args.price)
    model = find_model(args.model) or load_card(args.model).architecture
    return from_data_sheet(
        args.device,
        args.model,
        model,
        limits,
        dtype=args.dtype,
        num_gpus=args.gpus,
        price_per_hour=args.price,
    )


def _workload(args: argparse.Namespace) -> list[Arrival]:
    try:
        trace = load(args.trace, args.format)
    except LoadgenError as error:
        raise ConfigError(str(error)) from error
    rows = trace.rows[: args.limit]
    arrivals = [
        Arrival(row.at_ns, row.num_input, row.num_output) for row in rows if row.num_input is not None
    ]
    if not arrivals:
        raise ConfigError(f"{args.trace}: its prompts are texts; a simulation needs their lengths in tokens")
    return clamped(from_zero(arrivals), args.max_input, args.max_output)


def _paced(
    workload: list[Arrival], args: argparse.Namespace, cell: Cell, capacity: float | None
) -> list[Arrival]:
    if capacity is not None:
        return at_rate(workload, capacity * args.load * cell.num_replicas)
    return at_rate(workload, args.rate) if args.rate else workload


def _options(pairs: list[str]) -> dict[str, Any]:
    """KEY=VALUE, values as TOML has them; what is no TOML is a string."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, found, value = pair.partition("=")
        if not found:
            raise ConfigError(f"--set {pair}: expected KEY=VALUE")
        try:
            options[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = value
    return options


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A bar on standard error, where that is a terminal."""
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, sent: bar.update(task, completed=done + sent)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value
