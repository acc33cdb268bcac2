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
from msgspec.structs import asdict
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loadgen.errors import LoadgenError
from loadgen.traces import FORMAT_NAMES, Blocks, load
from pipeline.checkpoint.model import load_card
from pipeline.cli import Commands
from pipeline.cli.numbers import count, positive
from pipeline.errors import ConfigError
from pipeline.simulate.against import AIM, compare, read_result, workload_of
from pipeline.simulate.case import Case
from pipeline.simulate.cells import Cell, find_capacity, run_cell
from pipeline.simulate.devices import DEVICES
from pipeline.simulate.figures import Figures
from pipeline.simulate.measured import read_measured
from pipeline.simulate.models import MODELS, find_model
from pipeline.simulate.report import comparison_report, report
from pipeline.simulate.scenarios import SCENARIOS
from pipeline.simulate.slo import Slo, parse_slo
from pipeline.simulate.target import Limits, Target, from_data_sheet, from_measured
from pipeline.simulate.workload import Arrival, asking, at_rate, clamped, from_zero, repeated


def register(commands: Commands) -> None:
    parser = commands.add_parser("simulate", help="plan capacity: a trace on a device that need not exist")
    _add_workload(parser)
    _add_target(parser)
    parser.add_argument(
        "--policy", default="fcfs", metavar="NAME,...", help="one run each (default %(default)s)"
    )
    parser.add_argument(
        "--gate", action="store_true", help="refuse at the door, as the server does; default: all queue"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of stages.schedule, as config.toml has it; again for more",
    )
    parser.add_argument(
        "--scenario",
        choices=SCENARIOS,
        help="; ".join(f"{name}: {scenario.about}" for name, scenario in SCENARIOS.items()),
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of what a scenario draws (default 0)"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="RESULT.json",
        help="simulate the requests of a run of loadgen, and say how far measured and simulated are apart",
    )
    parser.add_argument("--slo", metavar="ttft=1s,...", help="limits of a good answer: ttft, tpot, e2e")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what arrives")
    group.add_argument("--trace", type=Path, metavar="FILE", help="recorded traffic")
    group.add_argument("--format", metavar="NAME", help=f"default: by content; {', '.join(FORMAT_NAMES)}")
    group.add_argument("--limit", type=count, metavar="N", help="only the first N requests")
    group.add_argument("--max-input", type=count, metavar="N", help="cut longer prompts to N tokens")
    group.add_argument("--max-output", type=count, metavar="N", help="cut longer answers to N tokens")
    group.add_argument(
        "--max-tokens",
        type=count,
        metavar="N",
        help="what every client asks for at most; default: just what its answer has, which tells sjf all",
    )
    group.add_argument("--repeat", type=count, default=1, metavar="N", help="the trace N times over")
    pace = group.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=positive, metavar="X", help="mean requests/s; default: as recorded")
    pace.add_argument(
        "--load", type=positive, metavar="X", help="times what the replicas can bear under fcfs, e.g. 0.9"
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
    group.add_argument("--gpus", type=count, default=1, metavar="N", help="of a replica, tensor parallel")
    group.add_argument(
        "--replicas", type=_counts, default=[1], metavar="N,...", help="one run each (default 1)"
    )
    group.add_argument("--price", type=positive, metavar="X", help="of a GPU, $ per hour")
    for name in ("max-num-seqs", "max-num-batched-tokens", "block-size", "num-blocks", "max-model-len"):
        group.add_argument(f"--{name}", type=count, metavar="N", help="as in config.toml")


def run(args: argparse.Namespace) -> int:
    """Simulate every policy on every number of replicas. Raises ConfigError."""
    target = _target(args)
    if args.against:
        return _run_against(args, target)
    if not args.trace:
        raise ConfigError("--trace FILE says what arrives (or --against RESULT.json)")
    if args.scenario:
        return _run_scenario(args, target)
    workload, base = _workload(args), _options(args.set)
    capacity = find_capacity(workload, target, base) if args.load else None
    cells = [
        Cell(policy, base | {"policy": policy}, replicas, args.gate)
        for replicas in args.replicas
        for policy in args.policy.split(",")
    ]
    cases = [
        Case(cell, repeated(_paced(workload, args, cell, capacity), args.repeat), target) for cell in cells
    ]
    figures = _run_cases(cases, parse_slo(args.slo) if args.slo else Slo())
    values: dict[str, object] = {"target": target.name, "capacity_per_replica": capacity, "cells": figures}
    _show(args, values, report(target.name, figures))
    return 0


def _run_scenario(args: argparse.Namespace, target: Target) -> int:
    """A scenario's cases, and what they say."""
    scenario = SCENARIOS[args.scenario]
    cases = scenario.cases(_workload(args), target, args.seed)
    figures = _run_cases(cases, Slo())
    verdict = scenario.verdict(cases, figures)
    values: dict[str, object] = {
        "target": target.name,
        "scenario": args.scenario,
        "verdict": verdict,
        "cells": figures,
    }
    _show(args, values, Group(report(target.name, figures), *verdict))
    return 0


def _run_against(args: argparse.Namespace, target: Target) -> int:
    """A measured run, simulated; what is further apart than Vidur's figure is bold."""
    finished, num_others = read_result(args.against)
    options = _options(args.set)
    (policy,) = args.policy.split(",")
    case = Case(
        Cell(policy, options | {"policy": policy}, args.replicas[0], is_gated=True),
        workload_of(finished),
        target,
    )
    (figures,) = _run_cases([case], Slo())
    comparisons = compare(finished, figures)
    notes = [f"{num_others} requests were not answered whole: left out"] if num_others else []
    values: dict[str, object] = {
        "target": target.name,
        "notes": notes,
        "comparisons": [asdict(each) | {"error": each.error} for each in comparisons],
        "cells": [figures],
    }
    _show(args, values, Group(comparison_report(comparisons, AIM), *notes))
    return 0


def _run_cases(cases: list[Case], slo: Slo) -> list[Figures]:
    figures, done = [], 0
    with _progress(sum(len(case.workload) for case in cases)) as progress:
        for case in cases:
            figures.append(run_cell(case.cell, case.workload, case.target, slo, partial(progress, done)))
            done += len(case.workload)
    return figures


def _show(args: argparse.Namespace, values: dict[str, object], tables: RenderableType) -> None:
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(values)).decode())
    else:
        Console().print(tables)


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
    numbers: dict[tuple[str, int], int] = {}
    arrivals = [
        Arrival(row.at_ns, row.num_input, row.num_output, spans=_spans(row.content, row.num_input, numbers))
        for row in rows
        if row.num_input is not None
    ]
    if not arrivals:
        raise ConfigError(f"{args.trace}: its prompts are texts; a simulation needs their lengths in tokens")
    workload = clamped(from_zero(arrivals), args.max_input, args.max_output)
    return asking(workload, args.max_tokens) if args.max_tokens else workload


def _spans(
    content: object, num_input: int, numbers: dict[tuple[str, int], int]
) -> tuple[tuple[int, int], ...]:
    """What a prompt shares with others; `numbers` counts the blocks of the trace."""
    if not isinstance(content, Blocks):
        return ()
    return tuple(
        (numbers.setdefault((content.scope, span), len(numbers)), size)
        for span, size in content.spans(num_input)
    )


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


def _counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]
