"""`stageline bench`: measure one stage alone, or the whole server with a runner that costs nothing."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import uvloop
from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress

from pipeline import assemble
from pipeline.bench.encoding import EncodingRate, by_stage, one_by_one
from pipeline.bench.feeds import Requests, feed_for
from pipeline.bench.fit import fit_evidence, fit_here, read_evidence
from pipeline.bench.measure import bench_stage
from pipeline.bench.planning import bench_planning
from pipeline.bench.report import fit_report, planning_report, stage_report, whole_report
from pipeline.bench.samples import Load
from pipeline.bench.stand import build_stand
from pipeline.bench.whole import WholeSettings, measure
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.checkpoint.model import load_card
from pipeline.cli import Commands
from pipeline.config import load, override
from pipeline.core.policies import SchedulingOptions
from pipeline.core.policies.make import ORDERS
from pipeline.errors import ConfigError
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import DEFAULT_CAPACITY, FakeRunner
from pipeline.simulate.measured import encode
from pipeline.topology import NODES

STAGES = [node.name for node in NODES]
DEFAULT_STEPS = {"execute": 50}
"""For a stage that takes long over a message."""
HELP = {
    "ingress": "covered by pipeline: it is sent no messages",
    "tokenize": "this stage alone, and batched against single",
}


def register(commands: Commands) -> None:
    """Add the command, with one sub-command per thing to measure."""
    parser = commands.add_parser("bench", help="measure one stage, or the whole pipeline")
    benches = parser.add_subparsers(metavar="WHAT", required=True)
    for stage in STAGES:
        _register_stage(benches, stage)
    _register_planning(benches)
    _register_whole(benches)


def _register_stage(benches: Commands, stage: str) -> None:
    parser = benches.add_parser(stage, help=HELP.get(stage, "this stage alone"))
    parser.add_argument(
        "--rows", type=_count, default=64, metavar="N", help="rows a step (default %(default)s)"
    )
    parser.add_argument(
        "--steps",
        type=_count,
        default=DEFAULT_STEPS.get(stage, 2000),
        metavar="N",
        help="messages to measure (default %(default)s)",
    )
    parser.add_argument("--model", metavar="REF", help="model reference; default: the config's")
    parser.add_argument(
        "--fake", action="store_true", help="a byte tokenizer and a runner that costs nothing"
    )
    if stage == "execute":
        _add_fit(parser)
    _add_common(parser)
    parser.set_defaults(run=run_stage, stage=stage, fit=None)


def _add_fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fit",
        nargs="?",
        const="",
        metavar="EVIDENCE.json",
        help="fit what a step costs, for `simulate --device`: from steps run here, or from what a server "
        "has recorded (stageline doctor --save)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where --fit writes (default measured.json)")


def _register_planning(benches: Commands) -> None:
    parser = benches.add_parser("plan", help="the scheduler alone: planning a step, under each policy")
    parser.add_argument("--running", type=_count, default=1024, metavar="N", help="default: %(default)s")
    parser.add_argument("--waiting", type=_count, default=4096, metavar="N", help="default: %(default)s")
    parser.add_argument("--steps", type=_count, default=300, metavar="N", help="default: %(default)s")
    parser.add_argument("--policy", metavar="NAME", help="one of them, or an import path; default: all")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run_planning)


def _register_whole(benches: Commands) -> None:
    parser = benches.add_parser(
        "pipeline", help="all stages, with many clients and a runner that costs nothing"
    )
    parser.add_argument(
        "--fake", action="store_true", required=True, help="run the runner that costs nothing"
    )
    parser.add_argument("--clients", type=_count, default=256, metavar="N", help="default: %(default)s")
    parser.add_argument("--seconds", type=_positive, default=10.0, metavar="S", help="default: %(default)g")
    parser.add_argument(
        "--tokens", type=_count, default=512, metavar="N", help="of each request (default %(default)s)"
    )
    parser.add_argument(
        "--flush-tokens", type=_count, metavar="N", help="the streamer's rule; default: the config's"
    )
    parser.add_argument("--flush-ms", type=_positive, metavar="MS", help="likewise")
    parser.add_argument("--protocol", choices=("ws", "sse"), default="ws", help="default: %(default)s")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="save cProfile's figures of the server")
    parser.add_argument(
        "--seeing", action="store_true", help="say what trace, journal and metrics cost, in turns on and off"
    )
    _add_common(parser)
    parser.set_defaults(run=run_whole)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="default: ./config.toml if there is one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run_stage(args: argparse.Namespace) -> int:
    """Measure one stage and print its figures."""
    config = override(load(args.config), model=args.model)
    blueprint = assemble.check(config)
    card = byte_card() if args.fake else load_card(config.model.reference)
    if args.fit is not None:
        return run_fit(args, blueprint, card)
    sample_load = Load.of(card, args.rows)
    feed = feed_for(args.stage, sample_load)
    stand = build_stand(blueprint, args.stage, card, _fake_runner(args.rows) if args.fake else None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(bench_stage(stand, feed, args.stage, args.steps))
    encodings: list[EncodingRate] = []
    if isinstance(feed, Requests):
        encodings = [one_by_one(card, sample_load, args.steps), by_stage(result, feed)]
    values = result.as_dict() | ({"encodings": encodings} if encodings else {})
    _show(args, values, stage_report(result, encodings))
    return 0


def run_planning(args: argparse.Namespace) -> int:
    """Time the planning of steps."""
    results = [
        bench_planning(SchedulingOptions(policy=policy), args.running, args.waiting, args.steps)
        for policy in ([args.policy] if args.policy else ORDERS)
    ]
    _show(args, results, planning_report(results))
    return 0


def run_fit(args: argparse.Namespace, blueprint: assemble.Blueprint, card: ModelCard) -> int:
    """Fit, write the file, and say how far the fit is from what was measured."""
    max_model_len = blueprint.config.model.max_model_len or card.architecture.max_position
    if args.fit:
        measured = fit_evidence(read_evidence(Path(args.fit)), card, max_model_len)
    else:
        runner = _fake_runner(args.rows) if args.fake else assemble.runner_factory(blueprint, card)
        with _progress("timing steps") as progress:
            measured = fit_here(runner, card, max_model_len, progress)
    out = args.out or Path("measured.json")
    try:
        out.write_bytes(encode(measured))
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror}") from error
    _show(args, measured, fit_report(measured, str(out)))
    return 0


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where that is a terminal."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _fake_runner(num_rows: int) -> RunnerFactory:
    capacity = replace(DEFAULT_CAPACITY, max_num_seqs=num_rows, num_blocks=max(4096, 32 * num_rows))
    return RunnerFactory(lambda: cast(Any, FakeRunner(capacity)))


def run_whole(args: argparse.Namespace) -> int:
    """1 if any request did not end as it should."""
    options = {"flush_tokens": args.flush_tokens, "flush_ms": args.flush_ms}
    settings = WholeSettings(
        num_clients=args.clients,
        seconds=args.seconds,
        max_tokens=args.tokens,
        protocol=args.protocol,
        config=str(args.config) if args.config else None,
        stream_options={key: value for key, value in options.items() if value is not None},
        measures_seeing=args.seeing,
        profile=str(args.profile.absolute()) if args.profile else None,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(measure(settings))
    _show(args, result.as_dict(), whole_report(result))
    for reason in result.failures:
        print(f"failed: {reason}", file=sys.stderr)
    return 1 if result.num_failures else 0


def _show(args: argparse.Namespace, values: object, report: Any) -> None:
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(values)).decode())
    else:
        Console().print(report)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value
