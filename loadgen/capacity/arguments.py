"""The options of `loadgen capacity`, beside those of the workload."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from loadgen.numbers import count, positive

DESCRIPTION = """\
Finds the highest rate of requests that holds --slo: doubles the rate from --from until it fails, then
bisects. Each rate is measured --repeats times with arrivals and prompts of their own, and judged by
majority.
"""
EPILOG = """\
example:
  loadgen capacity --trace azure_llm_2023_conv.csv --url http://127.0.0.1:8000 \\
      --max-input 512 --max-output 64 --slo ttft=500ms,itl=50ms,p=99 --from 1 --duration-s 30

exit codes: 0 found; 1 not found (no rate holds, or the generator itself is the bound); 2 the trace, the
server or an option cannot be used; 130 stopped by Ctrl-C
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """See the module."""
    add = command.add_argument
    add("--from", dest="start", type=positive, default=1.0, metavar="R", help="first requests/s (default 1)")
    add(
        "--to",
        dest="ceiling",
        type=positive,
        default=math.inf,
        metavar="R",
        help="no rate above R is tried",
    )
    add("--repeats", type=count, default=3, metavar="N", help="runs at each rate (default 3)")
    add(
        "--precision",
        type=_share,
        default=0.05,
        metavar="SHARE",
        help="ends when a rate holds and one this share above it does not (default 0.05)",
    )
    add_duration(command)
    add("--json", type=Path, metavar="FILE", help="write every run at every rate to FILE")
    add_gap_cv(command)


def add_duration(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--duration-s",
        type=positive,
        default=30.0,
        metavar="S",
        help="send for S at each rate (default 30); --limit N sends N requests instead",
    )


def add_gap_cv(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--gap-cv",
        type=_cv,
        default=1.0,
        metavar="CV",
        help="spread of the gaps between arrivals: 1 poisson (default), 0 even, above 1 bursty (gamma)",
    )


def _share(text: str) -> float:
    return _number(text, "a share from 0.001 to 1", lambda value: 0.001 <= value <= 1)


def _cv(text: str) -> float:
    return _number(text, "a number, 0 or more", lambda value: 0 <= value < math.inf)


def _number(text: str, expected: str, is_right: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not is_right(value):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value
