"""The options of `loadgen versus`."""

import argparse
import math
from pathlib import Path

from loadgen.numbers import count, positive

DESCRIPTION = """\
Starts each server of FILE in turn, asks all of them the same, stops it, and goes on to the next: one stream
(32 -> 128 tokens), a prompt of 1,024, and 64 requests of long-tailed lengths, 16 at a time. After the rounds
it prints medians, and the file's first server against the best of the others.
"""
EPILOG = """\
example:
  loadgen versus docs/peers.toml --rounds 3 --beside-busy --out versus

Each visit to a server is kept in --out: after an interruption the same command goes on where it was.
Exit code: 0 done, 1 a server failed, 2 a file or an option cannot be used, 130 stopped by Ctrl-C.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """See the module."""
    add = command.add_argument
    add("servers", type=Path, metavar="FILE", help="TOML, a table for each server; docs/peers.toml is one")
    add("--rounds", type=count, default=3, metavar="N", help="visits to each server, by turns (default 3)")
    add(
        "--out",
        type=Path,
        default=Path("versus"),
        metavar="DIR",
        help="for the visits, logs, result.json and report.md (default: versus)",
    )
    _add_workload(command)
    _add_care(command)


def _add_workload(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--workload",
        type=Path,
        metavar="FILE",
        help="JSONL of kind, prompt_ids, max_tokens, in place of --seed",
    )
    add("--seed", type=int, default=0, help="of the requests that are made (default 0)")
    add("--requests", type=count, default=64, metavar="N", help="of the long-tailed ones (default 64)")
    add("--users", type=count, default=16, metavar="N", help="of those, live at a time (default 16)")
    add(
        "--beside-busy",
        action="store_true",
        help="run decode and the long-tailed requests once more, beside a process that keeps a core busy",
    )


def _add_care(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--quiet-s",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="each run waits for a quiet machine, S at most (default 60)",
    )
    add(
        "--tries",
        type=count,
        default=3,
        metavar="N",
        help="runs of a case where other processes disturb it (default 3)",
    )
    add("--ready-s", type=positive, default=600.0, metavar="S", help="fail a start after S (default 600)")
    add("--stop-s", type=positive, default=40.0, metavar="S", help="kill S after SIGTERM (default 40)")
    add(
        "--timeout-s", type=positive, default=600.0, metavar="S", help="a request fails after S (default 600)"
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds, 0 or more, got {text!r}")
    return value
