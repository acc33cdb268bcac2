"""The commands that need no server: `report` shows a result.json once more, `compare` two of them."""

import argparse
from pathlib import Path

from rich.console import Console

from loadgen.compare import compare, print_comparison
from loadgen.html import render
from loadgen.report import print_report
from loadgen.result import read_result, write


def add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("result", type=Path, metavar="RESULT", help="a result.json")
    command.add_argument("--html", type=Path, metavar="OUT", help="write the page to OUT")
    command.set_defaults(run=_report)


def add_compare(command: argparse.ArgumentParser) -> None:
    command.add_argument("a", type=Path, metavar="A", help="a result.json, the one to compare with")
    command.add_argument("b", type=Path, metavar="B", help="another of the same workload")
    command.add_argument("--seed", type=int, default=0, help="of the resampling (default 0)")
    command.set_defaults(run=_compare)


def _report(arguments: argparse.Namespace, console: Console) -> int:
    result = read_result(arguments.result)
    print_report(console, result)
    if arguments.html is not None:
        write(arguments.html, render(result).encode())
    return 0


def _compare(arguments: argparse.Namespace, console: Console) -> int:
    a, b = read_result(arguments.a), read_result(arguments.b)
    print_comparison(console, a, b, compare(a, b, arguments.seed))
    return 0
