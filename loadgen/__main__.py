"""The command line of loadgen."""

import argparse
import sys
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from loadgen import sweep
from loadgen.capacity import arguments as capacity_arguments
from loadgen.capacity.command import run as find_capacity
from loadgen.clients import PROTOCOLS
from loadgen.clients.connect import target
from loadgen.describe import describe, print_description
from loadgen.errors import LoadgenError, first
from loadgen.load_options import add_behaviours, add_pacing, behaviours, pacing
from loadgen.numbers import count, positive
from loadgen.prefixes import TokenRange
from loadgen.replay import FINISHED, INTERRUPTED, Options, replay
from loadgen.result_commands import add_compare, add_report
from loadgen.selftest.command import add_selftest
from loadgen.slo import parse_slo
from loadgen.traces import FORMAT_NAMES, ReadOptions
from loadgen.tune import arguments as tune_arguments
from loadgen.tune.command import run as run_tuning
from loadgen.versus import arguments as versus_arguments
from loadgen.versus.command import run as run_versus
from loadgen.workload import Limits

UNUSABLE = 2
_WIDTH = 100
"""Columns where there is no terminal to ask."""

_EXAMPLES = """\
examples:
  the first 200 requests of an Azure trace over the WebSocket, cut to fit a small model:
    loadgen replay --trace azure_llm_2023_conv.csv --url ws://127.0.0.1:8000 \\
        --limit 200 --max-input 1024 --max-output 128
  any OpenAI-compatible server, twice as fast as recorded, with a goal, kept as JSON:
    loadgen replay --trace conversation_trace.jsonl --url http://127.0.0.1:8000 \\
        --speed 2 --slo ttft=1000ms,tpot=100ms --verify --out run1

exit codes: 0 every request finished; 1 some failed, or an answer was not verified; 2 the trace, the
server or an option cannot be used; 130 stopped by Ctrl-C (what was measured until then is still reported)
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the command in `argv` (default: the process's) and returns its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments, Console(width=None if sys.stdout.isatty() else _WIDTH)))
    except* LoadgenError as group:
        print(f"loadgen: {first(group)}", file=sys.stderr)
        code = UNUSABLE
    except* KeyboardInterrupt:
        code = INTERRUPTED
    return code


def _replay(arguments: argparse.Namespace, console: Console) -> int:
    return uvloop.run(replay(_options(arguments), console))


def _describe(arguments: argparse.Namespace, console: Console) -> int:
    found = describe(arguments.trace, arguments.format, _reading(arguments))
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        print_description(console, found)
    return FINISHED


def _options(arguments: argparse.Namespace) -> Options:
    return Options(
        trace=arguments.trace,
        target=target(arguments.url, arguments.protocol, arguments.model, arguments.sockets),
        limits=Limits(arguments.limit, arguments.max_input, arguments.max_output),
        format=arguments.format,
        reading=_reading(arguments),
        tokens=arguments.token_ids,
        slo=None if arguments.slo is None else parse_slo(arguments.slo),
        pacing=pacing(arguments),
        behaviours=behaviours(arguments),
        prompts=arguments.prompts,
        tokens_per_word=arguments.tokens_per_word,
        seed=arguments.seed,
        timeout_s=arguments.timeout_s,
        verify=arguments.verify,
        json=arguments.json,
        out=arguments.out,
    )


def _reading(arguments: argparse.Namespace) -> ReadOptions:
    return ReadOptions(arguments.block_size, arguments.window, arguments.seed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loadgen", description="Replays recorded traffic against a server.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "replay",
        help="send a trace's requests at their recorded times, or at others",
        description="Sends a trace's requests when they are due (open loop), with prompts of real text "
        "of the recorded length and the recorded output length forced, and reports what the clients saw.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_workload(command)
    _add_target(command)
    _add_outputs(command)
    add_pacing(command)
    command.set_defaults(run=_replay)
    _add_sweep(commands)
    _add_capacity(commands)
    _add_tune(commands)
    _add_versus(commands)
    _add_describe(commands.add_parser("describe", help="print a trace's measured shape; needs no server"))
    add_selftest(commands.add_parser("selftest", help="measure how much this generator sustains"))
    add_report(commands.add_parser("report", help="show a result.json once more; --html makes its page"))
    add_compare(commands.add_parser("compare", help="what differs between two runs of the same workload"))
    return parser


def _add_capacity(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "capacity",
        help="find the highest rate that holds a service level objective",
        description=capacity_arguments.DESCRIPTION,
        epilog=capacity_arguments.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_rated(command)
    capacity_arguments.add_arguments(command)
    command.set_defaults(
        run=lambda arguments, console: find_capacity(arguments, _options(arguments), console), out=None
    )


def _add_sweep(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "sweep",
        help="replay at one rate after the other, and show how the latencies answer",
        description=sweep.DESCRIPTION,
        epilog=sweep.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_rated(command)
    sweep.add_arguments(command)
    command.set_defaults(
        run=lambda arguments, console: sweep.run(arguments, _options(arguments), console), json=None
    )


def _add_rated(command: argparse.ArgumentParser) -> None:
    """A workload and a target of a command that sets the rate itself, and verifies nothing."""
    _add_workload(command)
    _add_target(command)
    command.set_defaults(timing=None, speed=None, ramp=None, ties="burst", verify=False)


def _add_tune(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "tune",
        help="change one setting of the server at a time, and say which value to take",
        description=tune_arguments.DESCRIPTION,
        epilog=tune_arguments.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_workload(command)
    _add_model(command)
    tune_arguments.add_arguments(command)
    add_pacing(command)
    command.set_defaults(
        run=lambda arguments, console: run_tuning(arguments, _options(arguments), console),
        json=None,
        url="http://127.0.0.1",
        verify=False,
    )


def _add_versus(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "versus",
        help="compare servers on this machine, by turns, with the same requests",
        description=versus_arguments.DESCRIPTION,
        epilog=versus_arguments.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    versus_arguments.add_arguments(command)
    _add_token_ids(command)
    command.set_defaults(run=run_versus)


def _add_describe(command: argparse.ArgumentParser) -> None:
    command.add_argument("trace", type=Path, metavar="FILE", help=f"one of: {', '.join(FORMAT_NAMES)}")
    _add_reading(command)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_describe)


def _add_workload(command: argparse.ArgumentParser) -> None:
    """What is sent, whenever and to whomever."""
    command.add_argument(
        "--trace", type=Path, required=True, metavar="FILE", help="a trace of any format that describe reads"
    )
    _add_reading(command)
    _add_what(command)
    _add_how(command)
    add_behaviours(command)


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", required=True, help="the server's root: http://HOST:PORT or ws://HOST:PORT")
    _add_model(command)


def _add_model(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--protocol", choices=PROTOCOLS, help="default: ws for a ws:// URL, else sse")
    add("--model", metavar="NAME", help="default: the one the server lists")


def _add_outputs(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--verify", action="store_true", help="compare every answer with what its prompt gets alone")
    add("--out", type=Path, metavar="DIR", help="write result.json and report.html to DIR")
    add("--json", type=Path, metavar="FILE", help="write result.json to FILE")


def _add_reading(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--format", metavar="NAME", help="read the trace as this format; default: told by its content")
    add("--block-size", type=count, metavar="N", help="tokens of a hash id, where it is not the format's")
    add("--window", type=_pair, metavar="FIRST:LAST", help="only these seconds of a generated day (servegen)")
    add("--seed", type=int, default=0, help="of what is generated, and of the prompts (default 0)")


def _add_what(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--limit", type=count, metavar="N", help="only the first N usable rows")
    add(
        "--max-input",
        type=count,
        metavar="N",
        help="clamp input lengths to N tokens; clamped rows are counted",
    )
    add("--max-output", type=count, metavar="N", help="clamp output lengths to N tokens")


def _add_how(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--slo", metavar="GOAL", help="goodput for this goal: ttft=1s,itl=50ms,tpot=50ms,e2e=30s,p=99 (any)")
    add(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="text to cut prompts from (default: public domain English)",
    )
    add(
        "--tokens-per-word",
        type=positive,
        metavar="X",
        help="trust X instead of measuring the text with about 25 one-token requests before the run",
    )
    _add_token_ids(command)
    add(
        "--sockets",
        type=count,
        default=8,
        metavar="N",
        help="WebSockets that share the requests (default 8)",
    )
    add(
        "--timeout-s",
        type=positive,
        default=600.0,
        metavar="S",
        help="a request fails after S (default 600)",
    )


def _add_token_ids(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--token-ids",
        type=_token_ids,
        default=TokenRange(),
        metavar="FIRST:LAST",
        help="of prompts that are made from ids (default 1000:20000)",
    )


def _token_ids(text: str) -> TokenRange:
    first, last = _pair(text)
    if not (first.is_integer() and last.is_integer()):
        raise argparse.ArgumentTypeError(f"expected whole numbers, got {text!r}")
    return TokenRange(int(first), int(last))


def _pair(text: str) -> tuple[float, float]:
    """`FIRST:LAST`, 0 <= FIRST < LAST."""
    first, _, last = text.partition(":")
    try:
        pair = float(first), float(last)
    except ValueError:
        pair = 0.0, 0.0
    if not 0 <= pair[0] < pair[1] < float("inf"):
        raise argparse.ArgumentTypeError(f"expected FIRST:LAST, the second larger, got {text!r}")
    return pair


if __name__ == "__main__":
    sys.exit(main())
