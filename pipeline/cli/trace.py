"""`stageline trace`: save the last seconds of a running server for Perfetto."""

import argparse
import math
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from pipeline.cli import DEFAULT_URL, Commands
from pipeline.errors import StagelineError

TIMEOUT_S = 30.0


class _ChromeTrace(msgspec.Struct):
    """The one thing that is read of the file: how many events it has."""

    traceEvents: list[msgspec.Raw]


class _Failure(msgspec.Struct):
    message: str


class _Failed(msgspec.Struct):
    error: _Failure


def register(commands: Commands) -> None:
    parser = commands.add_parser("trace", help="save a running server's trace for Perfetto")
    parser.add_argument("out", type=Path, metavar="OUT.json", help="the file to write")
    parser.add_argument("--url", default=DEFAULT_URL, help="the server (default %(default)s)")
    parser.add_argument(
        "--last-s", type=_seconds, default=30.0, metavar="S", help="how far back to go (default %(default)g)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch, check, write. Raises StagelineError if the server or the file cannot be reached."""
    body = _get(f"{args.url.rstrip('/')}/debug/trace?last_s={args.last_s:g}")
    try:
        num_events = len(msgspec.json.decode(body, type=_ChromeTrace).traceEvents)
    except msgspec.DecodeError as error:
        raise StagelineError(f"{args.url} did not send a trace: is it a Stageline server?") from error
    try:
        args.out.write_bytes(body)
    except OSError as error:
        raise StagelineError(f"{args.out}: cannot be written: {error.strerror}") from error
    print(f"{args.out}: {num_events:,} events. Open it at https://ui.perfetto.dev (Open trace file).")
    return 0


def _get(url: str) -> bytes:
    if urlsplit(url).scheme not in ("http", "https"):
        raise StagelineError(f"--url must begin with http:// or https://, got {url}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is near: no proxy
    try:
        with opener.open(url, timeout=TIMEOUT_S) as response:
            body: bytes = response.read()
    except urllib.error.HTTPError as error:
        with error:
            detail = _message(error.read()) or error.reason
        raise StagelineError(f"{url} answered {error.code}: {detail}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise StagelineError(f"no server at {url}: {reason}. Start one with `stageline serve`.") from error
    return body


def _message(body: bytes) -> str | None:
    """The server's own words, if the body has its error object."""
    try:
        return msgspec.json.decode(body, type=_Failed).error.message
    except msgspec.MsgspecError:
        return None


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return value
