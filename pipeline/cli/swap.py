"""`stageline swap`: put another class in the place of a stage of a running server."""

import argparse
import tomllib
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pipeline.admin_token import authorization
from pipeline.cli import Commands
from pipeline.cli.doctor import ADMIN_URL
from pipeline.errors import StagelineError

TIMEOUT_S = 120.0
"""For rehearsal, handover and trial."""

EPILOG = """\
The new stage is checked, rehearsed on the bench in a process of its own, and then takes over between two
batches: no request is lost or reordered. If it fails within the first seconds, the one before serves again.

VALUE is written as in config.toml (8, true, ["a", "b"]); what is no TOML is a text. For a class that runs
already the options are changed, and the others stay.

With --shadow nothing is swapped: the new stage gets a copy of what the running one takes, and what it says is
compared with what that one says (docs/stages.md: equivalence), and not sent.

The server must say `[admin] allow_swap = true` in its config.toml and run as you: docs/stages.md.

examples:
  stageline swap detokenize my_lab.fast:FastDetok
  stageline swap stream pipeline.stages.stream:Stream --options flush_ms=50 flush_tokens=16
  stageline swap detokenize my_lab.fast:FastDetok --shadow 60
  stageline swap filter my_lab.names:NameFilter --options 'names=["Ada", "Bob"]'

exit status: 0 it serves, or its shadow said the same; 1 not so, and why; 2 wrong usage
"""


class _Swapped(msgspec.Struct):
    paused_ns: int
    num_batches: int


class _Shadowed(msgspec.Struct):
    num_batches: int
    num_messages: int
    num_said: int
    num_said_live: int
    us_per_message: float
    us_per_message_live: float
    num_differences: int
    differences: list[str]
    reason: str


class _Failure(msgspec.Struct):
    message: str
    code: str | None = None


class _Failed(msgspec.Struct):
    error: _Failure


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "swap",
        help="put another class in a running stage's place",
        description="Put another class in the place of a stage of a running server.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stage", metavar="STAGE", help="as config.toml names it: detokenize, filter, ...")
    parser.add_argument("use", metavar="module:Class", help="the class, importable by the server")
    parser.add_argument(
        "--options",
        nargs="+",
        action="extend",
        default=[],
        type=_option,
        metavar="KEY=VALUE",
        help="settings of the class",
    )
    parser.add_argument(
        "--shadow",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="only compare it with the running one, for so long (600 at most)",
    )
    parser.add_argument(
        "--drain",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="where the two have not the same State: how long requests may wait until the running one has "
        "finished with those before (default %(default)g)",
    )
    parser.add_argument("--url", default=ADMIN_URL, help="the server's admin port (default %(default)s)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask, wait, tell. Raises StagelineError with the server's reason."""
    order = {
        "use": args.use,
        "options": dict(args.options),
        "drain_s": args.drain,
        "shadow_s": args.shadow,
    }
    body = post(args.url, f"/api/stages/{args.stage}/swap", order, TIMEOUT_S + args.drain + args.shadow)
    if args.shadow:
        return _told(msgspec.json.decode(body, type=_Shadowed))
    swapped = msgspec.json.decode(body, type=_Swapped)
    print(
        f"{args.stage} is {args.use} now: handed over in {swapped.paused_ns / 1e6:.1f} ms, "
        f"{swapped.num_batches} batches on trial"
    )
    return 0


def _told(seen: _Shadowed) -> int:
    """What a shadow has shown."""
    print(
        f"shadow: {seen.num_messages} messages in {seen.num_batches} batches, {seen.us_per_message:g} us "
        f"each (the running one: {seen.us_per_message_live:g} us); said {seen.num_said} "
        f"(the running one: {seen.num_said_live})"
    )
    for difference in seen.differences:
        print(f"  {difference}")
    if seen.reason:
        raise StagelineError(f"the shadow ended early: {seen.reason}")
    if seen.num_differences:
        raise StagelineError(f"{seen.num_differences} differences (a: the running one, b: the shadow)")
    print("no difference" if seen.num_messages else "nothing came: nothing was compared")
    return 0


def post(url: str, path: str, order: dict[str, Any], timeout_s: float) -> bytes:
    """The answer of the admin port. Raises StagelineError."""
    request = urllib.request.Request(
        url.rstrip("/") + path,
        msgspec.json.encode(order),
        {"Content-Type": "application/json", "Authorization": authorization(_port_of(url))},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is near: no proxy
    try:
        with opener.open(request, timeout=timeout_s) as response:
            answer: bytes = response.read()
    except urllib.error.HTTPError as error:
        with error:
            raise StagelineError(_reason(error.read(), error)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise StagelineError(f"no admin port at {url}: {reason}. Name another with --url") from error
    return answer


def _reason(body: bytes, error: urllib.error.HTTPError) -> str:
    try:
        failure = msgspec.json.decode(body, type=_Failed).error
    except msgspec.MsgspecError:
        return f"answered {error.code} {error.reason}: is that the admin port?"
    return f"{failure.code}: {failure.message}" if failure.code else failure.message


def _port_of(url: str) -> int:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise StagelineError(f"--url must begin with http:// or https://, got {url}")
    try:
        port = parts.port
    except ValueError as error:
        raise StagelineError(f"--url: {error}") from error
    return port or (443 if parts.scheme == "https" else 80)


def _option(text: str) -> tuple[str, Any]:
    """KEY=VALUE. Raises ArgumentTypeError."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value
