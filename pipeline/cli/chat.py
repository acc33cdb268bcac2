"""`stageline chat`: talk to a running server. The websocket side is in chat_client."""

import argparse
import contextlib
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.cli import DEFAULT_URL, Commands
from pipeline.errors import RequestError, StagelineError

if TYPE_CHECKING:
    from pipeline.cli.chat_client import Conversation

HELP = """\
/clear    forget the conversation
/help     this text
/exit     leave (Ctrl-D too)
Ctrl-C    during an answer ends the answer; at the prompt, twice, leaves"""

PROMPT = "> "


def register(commands: Commands) -> None:
    parser = commands.add_parser("chat", help="talk to a running server")
    parser.description = "Talk to a running server. With piped input: one prompt a line, answers on stdout."
    parser.add_argument("--url", default=DEFAULT_URL, help="the server (default %(default)s)")
    parser.add_argument("--system", metavar="TEXT", help="how the model should behave")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: what fits)")
    parser.add_argument(
        "--temperature",
        type=_finite,
        default=0.3,  # what small models need to stay on the subject; the server's own default is 1
        metavar="T",
        help="0 always takes the likeliest token (default %(default)s)",
    )
    parser.add_argument("--top-p", type=_finite, metavar="P", help="take from the likeliest tokens of sum P")
    parser.add_argument("--top-k", type=int, metavar="K", help="take from the K likeliest tokens")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The read-answer loop. Returns 1 if a piped prompt failed."""
    from pipeline.cli.chat_client import Conversation

    conversation = Conversation(args.url, args.system, _sampling(args))
    if sys.stdin.isatty():
        print(f"Talking to {args.url}. /help lists the commands.")
        return _talk(conversation)
    return _pipe(conversation)


def _talk(conversation: "Conversation") -> int:
    for line in _typed():
        if line == "/exit":
            break
        try:
            _obey(line, conversation)
        except StagelineError as error:
            print(f"stageline: {error}", file=sys.stderr)
        except KeyboardInterrupt:  # before there was an answer to cancel, or twice
            print()
    return 0


def _pipe(conversation: "Conversation") -> int:
    """One prompt a line. Goes on after a refused prompt; without a server it ends at once."""
    status = 0
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            finish_reason = conversation.ask(line.strip(), _write)
        except RequestError as error:
            print(f"stageline: {error}", file=sys.stderr)
            status = 1
            continue
        print()
        if finish_reason == "cancelled":
            raise KeyboardInterrupt
    return status


def _obey(line: str, conversation: "Conversation") -> None:
    if line == "/help":
        print(HELP)
    elif line == "/clear":
        conversation.clear()
    elif line.startswith("/"):
        print(f"{line}: no such command\n{HELP}")
    elif line:
        finish_reason = conversation.ask(line, _write_plain)
        print("" if finish_reason == "stop" else f" [{finish_reason}]")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_plain(text: str) -> None:
    """To a terminal: without the control characters that could drive it."""
    _write("".join(char for char in text if char.isprintable() or char in "\n\t"))


def _typed() -> Iterator[str]:
    """Lines typed at the prompt, until Ctrl-D or Ctrl-C twice in a row."""
    with contextlib.suppress(ImportError):  # not on every platform; plain lines then
        import readline  # noqa: F401  # gives input() editing and history
    interrupted = False
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            if interrupted:
                return
            interrupted = True
            print("Ctrl-C again, Ctrl-D or /exit leaves.")
            continue
        interrupted = False
        yield line.strip()


def _sampling(args: argparse.Namespace) -> dict[str, int | float]:
    """What was given on the command line; the server's defaults hold for the rest."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed")
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError("must be a finite number")
    return value
