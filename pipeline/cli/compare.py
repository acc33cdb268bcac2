"""`stageline compare`: two classes for one stage, on the same input: is it the same they answer, how fast?"""

import argparse
import asyncio
import os
import sys
import tomllib
from pathlib import Path

import msgspec
import uvloop
from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress

from pipeline.bench.compare.answers import PATIENCE_S, Answers, compare_answers
from pipeline.bench.compare.input import Input, of_recording, of_samples
from pipeline.bench.compare.ratio import MIN_ROUNDS
from pipeline.bench.compare.report import comparison_report
from pipeline.bench.compare.rounds import Times, Timing, Told, time_rounds
from pipeline.bench.compare.side import BUILT_IN, CONFIGURED, Side, unseen, variant
from pipeline.bench.replay import read_recording
from pipeline.bench.replay.plans import capacity_of
from pipeline.bench.samples import Load
from pipeline.bench.sources import blueprint_for, fake_runner, room_for
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.checkpoint.model import load_card
from pipeline.cli import Commands, printed
from pipeline.cli.numbers import count, positive
from pipeline.config import load, override
from pipeline.messages import DeviceReady, StepPlan
from pipeline.runtime.recording import Recording
from pipeline.topology import Graph

ROUNDS, STEPS, TOKENS = 20, 200, 64
FEWER = {"execute": (MIN_ROUNDS, 10, 16), "tokenize": (ROUNDS, 50, TOKENS)}
"""The same for stages that take long over a message."""
BUSY_LOAD = 0.5
"""Of each core, from which on a note says so."""
EPILOG = """
Both are run on the stand of `stageline bench`: first to hear all that they give, then timed by turns. The
answers must be equivalent as the class of a declares it (docs/stages.md).

exit status: 0 the answers are the same; 1 they differ, or b failed; 2 the command line or the config is
wrong; 3 the answers are the same, but b is slower than --max-ratio

  stageline compare detokenize --b my_lab.fast:FastDetok --replay live.rec
  stageline compare schedule --b config --b-options policy=sjf --max-ratio 1.05
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="measure one stage against another, and check that they answer the same",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stage", metavar="STAGE", help="its name in the graph")
    classes = f"an import path, {BUILT_IN}, or {CONFIGURED}: the one that config names"
    parser.add_argument("--a", default=BUILT_IN, metavar="CLASS", help=f"{classes} (default %(default)s)")
    parser.add_argument("--b", required=True, metavar="CLASS", help="likewise")
    for side in ("a", "b"):
        parser.add_argument(
            f"--{side}-options",
            nargs="+",
            action="extend",
            default=[],
            type=_option,
            metavar="KEY=VALUE",
            help=f"options of {side}, as in TOML; over those of config, where the class takes such",
        )
    _add_input(parser)
    _add_timing(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="default: ./config.toml if there is one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replay", type=Path, metavar="FILE", help="a recording of its inbox, not samples")
    parser.add_argument(
        "--rows", type=count, default=64, metavar="N", help="rows a step (default %(default)s)"
    )
    parser.add_argument(
        "--requests", type=count, metavar="N", help="whose answers are compared (default: twice the rows)"
    )
    parser.add_argument("--model", metavar="REF", help="model reference; default: the config's")
    parser.add_argument(
        "--fake", action="store_true", help="a byte tokenizer and a runner that costs nothing"
    )


def _add_timing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps",
        type=count,
        metavar="N",
        help=f"messages of each side in a round (default {STEPS}; tokenize {FEWER['tokenize'][1]}, "
        f"execute {FEWER['execute'][1]})",
    )
    parser.add_argument(
        "--rounds",
        type=_rounds,
        metavar="N",
        help=f"at least {MIN_ROUNDS} (default {ROUNDS}, of execute {FEWER['execute'][0]})",
    )
    parser.add_argument(
        "--keep-devices",
        action="store_true",
        help="of execute: open each device once, not for each turn; there must be memory for both",
    )
    parser.add_argument(
        "--max-ratio", type=positive, metavar="X", help="fail where b surely takes over X times as long as a"
    )
    parser.add_argument(
        "--patience",
        type=positive,
        default=PATIENCE_S,
        metavar="S",
        help="a stage that gives nothing for so long has lost a message (default %(default)g s)",
    )


class Result(msgspec.Struct, frozen=True):
    """What is printed as JSON."""

    stage: str
    a: str
    b: str
    answers: Answers
    times: Times | None
    """None: b did not come to the end of the answers."""
    verdict: str
    notes: list[str]
    """What is to be known besides."""


def run(args: argparse.Namespace) -> int:
    """Compare, print, and say by the status what was found."""
    config = override(load(args.config), model=args.model)
    configured = blueprint_for(config, args.stage)
    blueprints = [
        variant(configured, args.stage, use, dict(options), f"--{name}")
        for name, use, options in (("a", args.a, args.a_options), ("b", args.b, args.b_options))
    ]
    recording = read_recording(args.replay) if args.replay else None
    card = byte_card() if args.fake else load_card(config.model.reference)
    runner = fake_runner(_room(recording, args.rows)) if args.fake else None
    a, b = (
        Side(name, args.stage, blueprint, card, runner)
        for name, blueprint in zip("ab", blueprints, strict=True)
    )
    notes = [note for note in (unseen(a, b), busy_note()) if note]
    fed = _input(args, configured.graph, card, recording)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        answers = loop.run(compare_answers(a, b, fed, args.patience))
        times = None if answers.failure else loop.run(_timed(args, a, b, fed))
    result = Result(args.stage, a.use, b.use, answers, times, times.ratio.verdict if times else "", notes)
    printed(args, result, comparison_report(a, b, answers, times, notes))
    return _status(result, args.max_ratio)


def _status(result: Result, max_ratio: float | None) -> int:
    if not result.answers.are_alike:
        return 1
    is_too_slow = max_ratio is not None and result.times is not None and result.times.ratio.low > max_ratio
    return 3 if is_too_slow else 0


def _room(recording: Recording | None, num_rows: int) -> DeviceReady:
    """A fake device's."""
    entries = recording.entries if recording else []
    plans = [each.message for each in entries if isinstance(each.message, StepPlan)]
    return replace(capacity_of(plans), block_size=16) if plans else room_for(num_rows)


def _input(args: argparse.Namespace, graph: Graph, card: ModelCard, recording: Recording | None) -> Input:
    if recording is not None:
        return of_recording(args.stage, graph, recording)
    _, _, num_tokens = FEWER.get(args.stage, (ROUNDS, STEPS, TOKENS))
    num_requests = args.requests or 2 * args.rows
    return of_samples(args.stage, graph, Load.of(card, args.rows), num_requests, num_tokens)


async def _timed(args: argparse.Namespace, a: Side, b: Side, fed: Input) -> Times:
    rounds, steps, _ = FEWER.get(args.stage, (ROUNDS, STEPS, TOKENS))
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("timing rounds", total=None)
        told: Told = lambda done, total: bar.update(task, completed=done, total=total)  # noqa: E731
        timing = Timing(
            args.rounds or rounds, args.steps or steps, keeps_devices=args.keep_devices, told=told
        )
        return await time_rounds(a, b, fed, timing)


def busy_note() -> str:
    """What else the machine does, if that is much; empty: it is not, or nobody knows."""
    if not hasattr(os, "getloadavg"):
        return ""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < BUSY_LOAD * cores:
        return ""
    return f"The machine was busy before this began: load {load:.1f} on {cores} cores."


def _option(text: str) -> tuple[str, object]:
    """KEY=VALUE. A value that is not TOML is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: must be KEY=VALUE")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def _rounds(text: str) -> int:
    value = int(text)
    if value < MIN_ROUNDS:
        raise argparse.ArgumentTypeError(f"must be at least {MIN_ROUNDS}, or nothing could be said for sure")
    return value
