"""`stageline bench STAGE`: one stage alone, on samples or on what a server has recorded."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress

from pipeline.assemble import Blueprint, runner_factory
from pipeline.bench.alone import Alone
from pipeline.bench.company import beside
from pipeline.bench.encoding import EncodingRate, by_stage, one_by_one
from pipeline.bench.fit import fit_evidence, fit_here, fit_recorded, fit_replayed, is_recording, read_evidence
from pipeline.bench.profile import SUFFIXES, profiled, suffix_of
from pipeline.bench.replay import MAX, RECORDED, Pace, read_recording
from pipeline.bench.report import fit_report, stage_report
from pipeline.bench.result import StageResult
from pipeline.bench.samples import Load
from pipeline.bench.sources import blueprint_for, fake_runner, of_recording, of_samples, room_for
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.checkpoint.model import load_card
from pipeline.cli import printed
from pipeline.cli.numbers import count, positive
from pipeline.config import load, override
from pipeline.errors import ConfigError
from pipeline.simulate.measured import encode

NUM_STEPS = {"execute": 50}
"""Of a stage that takes long over a message."""
EPILOG = """
Without --replay the stage is given samples of the messages it takes, as fast as it takes them. With it, it is
given what was recorded of its inbox (stageline record): the first tenth warms up, the rest is measured.

  stageline bench detokenize --rows 256
  stageline bench detokenize --replay detokenize.rec --rate recorded
  stageline bench schedule --replay schedule.rec --clock virtual --at 20000
  stageline bench stream --replay stream.rec --profile wall
  stageline bench schedule --replay runs/schedule.rec --beside runs --rate recorded
"""


def add_arguments(parser: argparse.ArgumentParser, stage: str | None) -> None:
    """Those of a stage; None: any that a configuration's own graph has."""
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    if stage is None:
        parser.add_argument("stage", metavar="NAME", help="its name in the graph")
    else:
        parser.set_defaults(stage=stage)
    _add_source(parser, stage)
    _add_time(parser)
    profiles = parser.add_argument_group("profiles")
    profiles.add_argument(
        "--profile",
        choices=tuple(SUFFIXES),
        help="where its time goes: on the CPUs (py-spy; of execute: of the device, torch), by the clock "
        "(pyinstrument), its memory (tracemalloc), or every call (cProfile); its figures are not the stage's "
        "then",
    )
    profiles.add_argument(
        "--out", type=Path, metavar="FILE", help="default: STAGE-PROFILE.svg, .html or .prof; is overwritten"
    )
    parser.add_argument("--model", metavar="REF", help="model reference; default: the config's")
    parser.add_argument(
        "--fake",
        type=_step_ms,
        nargs="?",
        const=0.0,
        metavar="MS",
        help="a byte tokenizer, and a device whose steps take MS (none: no time) and compute nothing",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="default: ./config.toml if there is one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run, fit=None)
    if stage in (None, "execute"):
        _add_fit(parser)


def _add_source(parser: argparse.ArgumentParser, stage: str | None) -> None:
    source = parser.add_argument_group("what it is given")
    source.add_argument("--replay", type=Path, metavar="FILE", help="a recording of its inbox")
    source.add_argument(
        "--beside",
        type=Path,
        metavar="FOLDER",
        help="give it the company that it had: replay all recordings (*.rec) of other stages in FOLDER, made "
        "at the same time, on the same loop at the same rate",
    )
    source.add_argument(
        "--rows", type=count, default=64, metavar="N", help="rows a step (default %(default)s)"
    )
    source.add_argument(
        "--steps",
        type=count,
        default=NUM_STEPS.get(stage or "", 2000),
        metavar="N",
        help="messages to measure (default %(default)s)",
    )


def _add_time(parser: argparse.ArgumentParser) -> None:
    time = parser.add_argument_group("how fast")
    time.add_argument(
        "--rate",
        type=_rate,
        default=MAX,
        metavar="recorded|max|X",
        help="when it was sent, X times as fast, or batch by batch as fast as it takes them (the default)",
    )
    time.add_argument(
        "--clock",
        choices=("real", "virtual"),
        default="real",
        help="virtual: skip the time in which nobody works, so that a recorded hour takes as long as the "
        "stage works in it; not where threads or sockets of its own are at work (execute, ingress)",
    )
    time.add_argument(
        "--at",
        type=positive,
        metavar="N",
        help="say how busy it would be at N rows/s (tokens, or requests where a row is one); default: as "
        "recorded",
    )
    time.add_argument(
        "--no-allocations", action="store_true", help="leave out the second pass, which counts memory"
    )


def _add_fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fit",
        nargs="?",
        const="",
        metavar="FILE",
        help="fit what a step costs, for `simulate --device`: from steps run here (of a recording of "
        "execute, if that is FILE, else of varied composition), or from what a server has measured: a "
        "recording of sample, or its evidence (stageline doctor --save). --out says where to (default "
        "measured.json)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure one stage and print its figures."""
    config = override(load(args.config), model=args.model)
    blueprint = blueprint_for(config, args.stage)
    card = load_card(config.model.reference) if args.fake is None else byte_card()
    if args.fit is not None:
        return run_fit(args, blueprint, card)
    alone = _alone(args, blueprint, card)
    others: dict[str, StageResult] = {}
    if args.beside is None:
        result = _measured(args, alone)
    else:
        result, others = _in_company(args, alone)
    if not (args.no_allocations or args.profile):
        result = replace(result, allocations=alone.allocations())
    _show(args, alone, result, others)
    return 0


def _in_company(args: argparse.Namespace, alone: Alone) -> tuple[StageResult, dict[str, StageResult]]:
    """Its figures, and those of the others."""
    if args.replay is None or args.rate == MAX or args.clock != "real" or args.profile:
        raise ConfigError(
            "--beside needs --replay, and a --rate at which all recordings go by one clock (recorded, or a "
            "factor); it goes neither with --clock virtual nor with --profile"
        )
    company = beside(alone, read_recording(args.replay), args.beside, fake_step_ms=args.fake)
    results = company.measure(args.rate)
    return replace(results.pop(args.stage), at_rows_per_s=args.at), results


def _alone(args: argparse.Namespace, blueprint: Blueprint, card: ModelCard) -> Alone:
    if args.replay is not None:
        recording = read_recording(args.replay)
        return of_recording(blueprint, args.stage, card, recording, fake_step_ms=args.fake)
    if args.rate != MAX or args.clock != "real":
        raise ConfigError("--rate and --clock need --replay: samples come as fast as the stage takes them")
    return of_samples(
        blueprint, args.stage, card, num_rows=args.rows, num_messages=args.steps, fake_step_ms=args.fake
    )


def _measured(args: argparse.Namespace, alone: Alone) -> StageResult:
    is_virtual = args.clock == "virtual"
    if is_virtual and alone.has_own_time:
        raise ConfigError(
            f"--clock virtual: {args.stage} works in threads or sockets of its own, whose time is real"
        )
    if args.profile is None:
        result = alone.measure(args.rate, is_virtual=is_virtual)
    else:
        alone, watching = profiled(alone, args.profile, _out(args, alone))
        result = alone.measure(args.rate, is_virtual=is_virtual, watching=watching)
    return replace(result, at_rows_per_s=args.at)


def _out(args: argparse.Namespace, alone: Alone) -> Path:
    return args.out or Path(f"{args.stage}-{args.profile}{suffix_of(alone, args.profile)}")


def _show(
    args: argparse.Namespace, alone: Alone, result: StageResult, others: Mapping[str, StageResult]
) -> None:
    encodings: list[EncodingRate] = []
    if args.stage == "tokenize" and args.replay is None:
        load = Load.of(alone.card, args.rows)
        single = one_by_one(alone.card, load, args.steps)
        encodings = [single, by_stage(result, single)]
    values = result.as_dict() | ({"encodings": encodings} if encodings else {})
    path = _out(args, alone) if args.profile else None
    values |= {"profile": str(path)} if path else {}
    values |= {"beside": {name: each.as_dict() for name, each in others.items()}} if others else {}
    printed(args, values, stage_report(result, encodings, list(others.values())))
    if path and not args.json:
        print(f"profile: {path}")


def run_fit(args: argparse.Namespace, blueprint: Blueprint, card: ModelCard) -> int:
    """Fit, write the file, and say how far the fit is from what was measured."""
    max_model_len = blueprint.config.model.max_model_len or card.architecture.max_position
    if not args.fit:
        runner = (
            runner_factory(blueprint, card)
            if args.fake is None
            else fake_runner(room_for(args.rows), args.fake)
        )
        with _progress("timing steps") as progress:
            measured = fit_here(runner, card, max_model_len, progress)
    elif is_recording(path := Path(args.fit)):
        recording = read_recording(path)
        measured = fit_recorded(recording, max_model_len) or fit_replayed(
            of_recording(blueprint, args.stage, card, recording, fake_step_ms=args.fake),
            recording,
            max_model_len,
        )
    else:
        measured = fit_evidence(read_evidence(path), card, max_model_len)
    out = args.out or Path("measured.json")
    try:
        out.write_bytes(encode(measured))
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror}") from error
    printed(args, measured, fit_report(measured, str(out)))
    return 0


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where that is a terminal."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _rate(text: str) -> str:
    try:
        Pace.of(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {RECORDED}, {MAX} or a factor above 0") from None
    return text


def _step_ms(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 60_000:
        raise argparse.ArgumentTypeError("must be from 0 to 60000")
    return value
