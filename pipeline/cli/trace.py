"""`stageline trace`: save the last seconds of a running server for Perfetto."""

import argparse
import re
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from pipeline.cli import DEFAULT_URL, Commands
from pipeline.errors import StagelineError

TIMEOUT_S = 30.0
MAX_LAST_S = 3600.0

_UNITS_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+) ?([a-z]*)")


class _ChromeTrace(msgspec.Struct):
    """The one thing that is read of the file: how many events it has."""

    traceEvents: list[msgspec.Raw]


class _Failure(msgspec.Struct):
    message: str


class _Failed(msgspec.Struct):
    error: _Failure


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "trace",
        help="save a running server's trace for Perfetto",
        description="Save what a running server did of late: one track per stage, device and request.",
        epilog="example: stageline trace --last 30s out.json   (docs/tracing.md says what is in it)",
    )
    parser.add_argument("out", type=Path, metavar="OUT.json", help="the file to write")
    parser.add_argument("--url", default=DEFAULT_URL, help="the server (default %(default)s)")
    parser.add_argument(
        "--last",
        type=duration_s,
        default=30.0,
        metavar="TIME",
        help="how far back to go: 30s, 500ms, 2m, or a number of seconds (default 30s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch, check, write. Raises StagelineError if the server or the file cannot be reached."""
    body = _get(f"{args.url.rstrip('/')}/debug/trace?last_s={args.last:g}")
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


def duration_s(text: str) -> float:
    """A time such as 30s, 500ms, 2m or plain 30, in seconds. Raises ArgumentTypeError."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 30s, 500ms, 2m, or a number of seconds")
    value_s = float(match[1]) * _UNITS_S[match[2]]
    if not 0 < value_s <= MAX_LAST_S:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and at most {MAX_LAST_S / 60:g}m")
    return value_s
