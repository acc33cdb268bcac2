"""`stageline compile-kernels`: the ahead-of-time check of the Triton kernels; no GPU is needed."""

import argparse
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track

from pipeline.cli import Commands
from pipeline.errors import ConfigError
from pipeline.gpu.kernels.aot import ARCHS
from pipeline.gpu.kernels.catalogue import KERNELS, entries
from pipeline.gpu.kernels.check import Row, as_markdown, as_text, check
from pipeline.gpu.kernels.occupancy import MULTIPROCESSORS
from pipeline.gpu.kernels.shapes import KV_DTYPES, MODELS, find_shapes

BEGIN, END = "<!-- stageline compile-kernels -->", "<!-- end of stageline compile-kernels -->"


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "compile-kernels",
        help="compile the GPU kernels ahead of time, and check them",
        description=f"No GPU is needed. Models: {', '.join(MODELS)}. Exit status 1: something has got worse.",
    )
    parser.add_argument("--arch", type=int, nargs="+", default=ARCHS, choices=MULTIPROCESSORS, metavar="CC")
    parser.add_argument("--model", nargs="+", default=[], metavar="SHAPE", help="default: all")
    parser.add_argument("--kernel", nargs="+", default=[], metavar="K", help=f"of {', '.join(KERNELS)}")
    parser.add_argument("--kv-dtype", nargs="+", default=KV_DTYPES, choices=KV_DTYPES)
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="compile so many at once")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the table into this Markdown file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compile, print, and list what has got worse. Raises ConfigError."""
    found = entries(find_shapes(args.model, tuple(args.kv_dtype)), args.arch, args.kernel)
    progress = Console(stderr=True)
    checked = check(found, args.processes)
    rows = list(track(checked, "Compiling", len(found), console=progress, disable=not progress.is_terminal))
    if args.docs:
        _write(args.docs, rows)
    elif args.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        print(as_text(rows))
    faults = [fault for row in rows for fault in row.faults()]
    for fault in faults:
        progress.print(fault, highlight=False, style="red", soft_wrap=True)
    seconds = sum(row.usage.compile_s for row in rows)
    progress.print(f"{len(rows)} compiled in {seconds:.0f} s, {len(faults)} worse than they are to be")
    return 1 if faults else 0


def _write(path: Path, rows: list[Row]) -> None:
    """Between the two marks of a file. Raises ConfigError."""
    text = path.read_text() if path.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ConfigError(f"{path} has no {BEGIN} and {END} to write the table between")
    said = f"{datetime.now(UTC):%Y-%m-%d}, Triton {version('triton')}, {len(rows)} compilations."
    path.write_text(f"{before}{BEGIN}\n{said}\n\n{as_markdown(rows)}\n{END}{after}")
