"""The options of `loadgen tune`, beside those of the workload."""

import argparse
from pathlib import Path

DESCRIPTION = """\
Changes one variable at a time from a base configuration: for each value, starts the server with a
configuration of its own, replays the same seeded workload, and stops the server. Prints a table per
variable, which value to take, what it costs elsewhere, and where a larger value stops paying.
"""
EPILOG = """\
example:
  loadgen tune --trace azure_llm_2023_conv.csv --limit 60 --max-input 256 --max-output 64 \\
      --config config.toml --vary device.max_num_seqs=4,8,16,32 \\
      --vary device.max_num_batched_tokens=64,128,256,512

Each finished cell is kept in --out: after an interruption the same command goes on where it was.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """See the module."""
    add = command.add_argument
    add("--config", type=Path, required=True, metavar="FILE", help="the base configuration, TOML")
    add(
        "--vary",
        action="append",
        required=True,
        metavar="KEY=V,V,...",
        help="a variable and its values, such as device.max_num_seqs=8,16; again for another variable",
    )
    add(
        "--out",
        type=Path,
        default=Path("tune"),
        metavar="DIR",
        help="for finished cells, configurations, logs and the report (default: tune)",
    )
    _add_server(command)
    _add_evidence(command)


def _add_server(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--server",
        default="stageline serve",
        metavar="COMMAND",
        help="starts the server (default: stageline serve); {config}, {host} and {port} in it are filled "
        "in, or else --config FILE --port PORT are added",
    )
    add("--ready-path", default="/ready", metavar="PATH", help="answers 200 when ready (default /ready)")
    add("--ready-s", type=_seconds, default=300.0, metavar="S", help="fail a start after S (default 300)")
    add("--stop-s", type=_seconds, default=40.0, metavar="S", help="kill S after SIGTERM (default 40)")


def _add_evidence(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--repeats",
        type=_repeats,
        default=2,
        metavar="N",
        help="runs of the workload for each value, with seeds of their own (default 2; at least 2, "
        "for one run knows nothing of its noise)",
    )
    add(
        "--threshold",
        type=_share,
        default=0.03,
        metavar="SHARE",
        help="a smaller difference does not pay, nor count as a cost (default 0.03)",
    )


def _repeats(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= 2):
        raise argparse.ArgumentTypeError(f"expected a whole number, 2 or more, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    return _number(text, "a positive number of seconds", float("inf"))


def _share(text: str) -> float:
    return _number(text, "a share between 0 and 1", 1.0)


def _number(text: str, expected: str, below: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < below:
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value
