"""`stageline record`: what one stage of a running server takes, as a file to replay."""

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
from rich.console import Console
from rich.status import Status

from pipeline.cli import Commands
from pipeline.cli.admin_port import AdminPort, NoServer
from pipeline.cli.doctor import ADMIN_URL
from pipeline.cli.trace import duration_s
from pipeline.errors import StagelineError
from pipeline.recordings.wanted import State, Wanted

POLL_S = 0.25
_PATH = "/api/recordings"

EPILOG = """\
LINK is the name of a stage, for all that it takes, or of a link, as 'schedule->detokenize' (quote it: > is
the shell's). It ends after the given time or size, by Ctrl-C, or by the bounds of the server's [trace]
record_max_s and record_max_bytes; what there is by then is kept.

Texts are replaced by others of the same length, unless --with-prompts; a server lets that be only where its
config.toml says `[trace] record_redacted = false`. docs/recording.md says what is kept.

examples:
  stageline record detokenize --seconds 10s
  stageline record 'schedule->execute' --out plans.rec
  stageline bench detokenize --replay to-detokenize.20260102-030405-678901.rec
"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "record",
        help="record what a stage of a running server takes",
        description="Record the messages of one link of a running server, with their times.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("link", metavar="LINK", help="detokenize, 'schedule->detokenize', ...")
    parser.add_argument(
        "--seconds", type=duration_s, metavar="TIME", help="30s, 500ms, 2m, or a number of seconds"
    )
    parser.add_argument("--max-bytes", type=int, metavar="N", help="end when it is so large")
    texts = parser.add_mutually_exclusive_group()
    texts.add_argument("--redacted", action="store_true", default=True, help="replace texts (the default)")
    texts.add_argument(
        "--with-prompts", action="store_false", dest="redacted", help="keep what clients say and are told"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: a name of its own)"
    )
    parser.add_argument("--url", default=ADMIN_URL, help="the server's admin port (default %(default)s)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Begin, wait, fetch. Raises StagelineError if there is nothing to fetch."""
    if args.out is not None and args.out.exists():
        raise StagelineError(f"{args.out} is there already: name another with --out")
    port = AdminPort(args.url)
    wanted = Wanted(args.link, args.max_bytes, args.seconds, args.redacted)
    begun = _state(port.ask("POST", _PATH, wanted))
    out = args.out or Path(begun.id)
    try:
        _tell(_fetched(port, begun, out), out)
    except NoServer as error:
        raise StagelineError(
            f"the server has ended; what there was by then is {begun.id} in its trace.record_dir"
        ) from error
    return 0


def _fetched(port: AdminPort, begun: State, out: Path) -> State:
    """How it ended; its file is here then, and no more on the server."""
    with suppress(KeyboardInterrupt):  # what there is is kept
        _watch(port, begun)
    ended = _state(port.ask("POST", f"{_PATH}/{begun.id}/stop", {}))
    port.save(f"{_PATH}/{begun.id}", out)
    port.ask("DELETE", f"{_PATH}/{begun.id}")
    return ended


def _watch(port: AdminPort, begun: State) -> None:
    """Until it has ended, with a line of progress on standard error, where that is a terminal."""
    console = Console(stderr=True)
    with console.status(_progress(begun)) as line:
        while not _shown(port, begun.id, line).ended:
            time.sleep(POLL_S)


def _shown(port: AdminPort, name: str, line: Status) -> State:
    states = msgspec.json.decode(port.ask("GET", _PATH), type=list[State])
    state = next((each for each in states if each.id == name), None)
    if state is None:
        raise StagelineError(f"{name} was removed by somebody else")
    line.update(_progress(state))
    return state


def _progress(state: State) -> str:
    return (
        f"recording {state.link}: {state.seconds:.1f} of {state.bounds.max_s:g} s, "
        f"{state.num_messages:,} messages, {state.num_bytes:,} bytes (Ctrl-C ends it)"
    )


def _tell(ended: State, out: Path) -> None:
    stage = ended.link.partition("->")[2]
    texts = "texts replaced" if ended.is_redacted else "with prompts"
    print(
        f"{out}: {ended.num_messages:,} messages of {ended.link} in {ended.seconds:.1f} s, "
        f"{ended.num_bytes:,} bytes, {texts}; {ended.ended}"
    )
    if not ended.num_messages:
        print("Nothing was sent there meanwhile: record while the server has work.", file=sys.stderr)
    else:
        print(f"Replay it with: stageline bench {stage} --replay {out}")


def _state(body: bytes) -> State:
    return msgspec.json.decode(body, type=State)
