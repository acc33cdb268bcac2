"""`stageline`: the command line. Each command is a module of pipeline.cli with `register(commands)`.

Only the module of the command that is asked for is imported, so that --help and chat do not wait for what
serve needs.

Exit status: 0 done, 1 the command failed, 2 the configuration or the command line is wrong, 130 interrupted;
doctor adds 3 and 4.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from pipeline import __version__
from pipeline.errors import ConfigError, StagelineError

COMMANDS = {
    "serve": "run the server",
    "chat": "talk to a running server",
    "model": "fetch, list and show models",
    "keys": "make API keys and their limits",
    "check-config": "check config.toml and show what would run",
    "eval": "measure what quantised weights and KV cost in quality",
    "new-stage": "begin a stage of your own",
    "bench": "measure one stage, or the whole pipeline",
    "compare": "measure one stage against another, and check that they answer the same",
    "trace": "save a running server's trace for Perfetto",
    "record": "record what a stage of a running server takes",
    "swap": "put another class in a running stage's place",
    "doctor": "say what holds a server back, and what to change",
    "simulate": "plan capacity: a trace on a device that need not exist",
    "memory": "plan KV memory: what a token takes, how many requests fit",
    "compile-kernels": "compile the GPU kernels ahead of time, and check them",
    "tune-kernels": "measure how the GPU kernels are best launched here",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Errors raised on purpose become one line on stderr."""
    argv = sys.argv[1:] if argv is None else argv
    asked = next((word for word in argv if not word.startswith("-")), None)
    args = _parser(asked).parse_args(argv)
    sys.path.insert(0, "")  # import paths in config.toml may name modules of the current folder
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


def _parser(asked: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stageline",
        description="An LLM inference server: seven stages linked by bounded queues.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
    )
    parser.add_argument("--version", action="version", version=f"stageline {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name == asked:
            import_module(f"pipeline.cli.{name.replace('-', '_')}").register(commands)
        else:
            commands.add_parser(name, help=summary)
    return parser


def _failed(error: StagelineError, status: int) -> int:
    print(f"stageline: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
