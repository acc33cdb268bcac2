"""`stageline bench`: measure one stage alone, or the whole server with a runner that costs nothing."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from pipeline.bench.planning import bench_planning
from pipeline.bench.report import planning_report, whole_report
from pipeline.bench.whole import WholeSettings, measure
from pipeline.cli import Commands, printed
from pipeline.cli.bench_stage import add_arguments
from pipeline.cli.numbers import count, positive
from pipeline.core.policies import SchedulingOptions
from pipeline.core.policies.make import ORDERS
from pipeline.topology import WHOLE

ANY_STAGE = "stage"
HELP = {
    "ingress": "the door alone: requests over a socket of this machine",
    "tokenize": "this stage alone, and batched against single",
}


def register(commands: Commands) -> None:
    """Add the command, with one sub-command per thing to measure."""
    parser = commands.add_parser("bench", help="measure one stage, or the whole pipeline")
    benches = parser.add_subparsers(metavar="WHAT", required=True, action=_Whats)
    for stage in WHOLE.names:
        add_arguments(benches.add_parser(stage, help=HELP.get(stage, "this stage alone")), stage)
    add_arguments(
        benches.add_parser(ANY_STAGE, help="a stage of your configuration's own graph; NAME alone does too"),
        None,
    )
    _register_planning(benches)
    _register_whole(benches)


class _Whats(argparse._SubParsersAction):  # type: ignore[type-arg]  # generic for checkers only
    """A name that nobody here knows is that of a stage in the graph of a configuration, not read yet."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known = self.choices
        self.choices = None  # type: ignore[assignment]  # it is what an action has that takes anything

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        words = list(values or ())
        known = words if words[0] in self._known else [ANY_STAGE, *words]
        super().__call__(parser, namespace, known, option_string)


def _register_planning(benches: Commands) -> None:
    parser = benches.add_parser("plan", help="the scheduler alone: planning a step, under each policy")
    parser.add_argument("--running", type=count, default=1024, metavar="N", help="default: %(default)s")
    parser.add_argument("--waiting", type=count, default=4096, metavar="N", help="default: %(default)s")
    parser.add_argument("--steps", type=count, default=300, metavar="N", help="default: %(default)s")
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
    parser.add_argument("--clients", type=count, default=256, metavar="N", help="default: %(default)s")
    parser.add_argument("--seconds", type=positive, default=10.0, metavar="S", help="default: %(default)g")
    parser.add_argument(
        "--tokens", type=count, default=512, metavar="N", help="of each request (default %(default)s)"
    )
    parser.add_argument(
        "--flush-tokens", type=count, metavar="N", help="the streamer's rule; default: the config's"
    )
    parser.add_argument("--flush-ms", type=positive, metavar="MS", help="likewise")
    parser.add_argument("--protocol", choices=("ws", "sse"), default="ws", help="default: %(default)s")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="save cProfile's figures of the server")
    costs = parser.add_mutually_exclusive_group()
    costs.add_argument(
        "--seeing", action="store_true", help="say what trace, journal and metrics cost, in turns on and off"
    )
    costs.add_argument(
        "--recording",
        nargs="?",
        const="schedule->detokenize",
        metavar="LINK",
        help="say what recording a link costs, in turns on and off (default: %(const)s)",
    )
    _add_common(parser)
    parser.set_defaults(run=run_whole)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="default: ./config.toml if there is one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run_planning(args: argparse.Namespace) -> int:
    """Time the planning of steps."""
    results = [
        bench_planning(SchedulingOptions(policy=policy), args.running, args.waiting, args.steps)
        for policy in ([args.policy] if args.policy else ORDERS)
    ]
    printed(args, results, planning_report(results))
    return 0


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
        recorded=args.recording,
        profile=str(args.profile.absolute()) if args.profile else None,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(measure(settings))
    printed(args, result.as_dict(), whole_report(result))
    for reason in result.failures:
        print(f"failed: {reason}", file=sys.stderr)
    return 1 if result.num_failures else 0
