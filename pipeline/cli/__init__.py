"""The terminal commands, one module each: `register(commands)` adds its parser, `run(args)` does the work."""

import argparse
from typing import Any, TypeAlias

import msgspec
from rich.console import Console

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""What `register` is given."""

DEFAULT_URL = "http://127.0.0.1:8000"
"""Where a server started without settings listens; the default of every client command."""


def printed(args: argparse.Namespace, values: object, report: Any) -> None:
    """On standard output: as JSON where that was asked for, else as tables."""
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(values)).decode())
    else:
        Console().print(report)
