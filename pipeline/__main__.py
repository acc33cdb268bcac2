"""`stageline`: the command line. Each command is a module of pipeline.cli with `register(commands)`.

Exit status: 0 done, 1 the command failed, 2 the configuration or the command line is wrong, 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from pipeline import __version__
from pipeline.cli import chat, check_config, trace
from pipeline.errors import ConfigError, StagelineError

COMMANDS = (chat, check_config, trace)
"""In the order of the help. A command imports what is slow when it runs, so that --help is not."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Errors raised on purpose become one line on stderr."""
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except ConfigError as error:
        return _failed(error, 2)
    except StagelineError as error:
        return _failed(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails too
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stageline", description="An LLM inference server: seven stages linked by bounded queues."
    )
    parser.add_argument("--version", action="version", version=f"stageline {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(commands)
    return parser


def _failed(error: StagelineError, status: int) -> int:
    print(f"stageline: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
