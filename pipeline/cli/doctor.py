"""`stageline doctor`: what holds a server back, what to change, and what that costs.

Exit status: 0 healthy or idle, 3 a finding, 4 too little to judge by; 1 and 2 as of every command.
"""

import argparse
import time
from pathlib import Path

import msgspec
from rich.console import Console

from pipeline.cli import Commands
from pipeline.cli.diagnosis_text import show
from pipeline.cli.doctor_source import fetch, judge, read
from pipeline.doctor import State
from pipeline.errors import StagelineError

ADMIN_URL = "http://127.0.0.1:8001"
"""Where the admin port listens without settings."""
STATUS = {State.HEALTHY: 0, State.IDLE: 0, State.CONSTRAINED: 3, State.UNKNOWN: 4}
WATCH_S = 5.0


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        help="say what holds a server back, and what to change",
        description="Judges a running server, evidence saved from one, or loadgen's result.json.",
        epilog="exit status: 0 healthy or idle, 3 a finding, 4 cannot tell, 1 failed, 2 wrong usage",
    )
    parser.add_argument(
        "file", type=Path, nargs="?", metavar="FILE.json", help="saved evidence, or a result.json of loadgen"
    )
    parser.add_argument("--url", default=ADMIN_URL, help="the server's admin port (default %(default)s)")
    parser.add_argument(
        "--last",
        type=_seconds,
        default=60.0,
        metavar="60s",
        help="how far back to look (default %(default)g s)",
    )
    parser.add_argument("--save", type=Path, metavar="FILE.json", help="also keep the server's evidence")
    parser.add_argument("--watch", action="store_true", help=f"again every {WATCH_S:g} s, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="one line of JSON each time, for programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Judge and show. Raises StagelineError if there is nothing to judge."""
    if args.file is None:
        return _live(args)
    if args.watch or args.save is not None:
        raise StagelineError("--watch and --save are for a running server, not for a file")
    return _tell(read(args.file), str(args.file), args.json)


def _live(args: argparse.Namespace) -> int:
    while True:
        body = fetch(args.url, args.last)
        if args.watch and not args.json:
            Console().rule(time.strftime("%H:%M:%S"))
        status = _tell(body, args.url, args.json)
        if args.save is not None:
            _save(args.save, body)
        if not args.watch:
            return status
        time.sleep(WATCH_S)


def _save(path: Path, body: bytes) -> None:
    try:
        path.write_bytes(body)
    except OSError as error:
        raise StagelineError(f"{path}: cannot be written: {error.strerror}") from error


def _tell(body: bytes, origin: str, as_json: bool) -> int:
    diagnosis = judge(body, origin)
    if as_json:
        print(msgspec.json.encode(diagnosis).decode(), flush=True)
    else:
        show(diagnosis, Console())
    return STATUS[diagnosis.state]


def _seconds(text: str) -> float:
    value = float(text.removesuffix("s"))
    if not 1 <= value <= 600:
        raise argparse.ArgumentTypeError("must be 1 to 600 seconds: the server keeps ten minutes")
    return value
