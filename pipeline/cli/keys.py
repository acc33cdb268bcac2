"""`stageline keys`: make API keys, and show what those of a file may do.

The file is TOML that people may edit; here it is only appended to. A key is shown once, when it is made: the
file holds its SHA-256.
"""

import argparse
import os
import re
import sys
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.cli import Commands
from pipeline.core.keys import Key, fingerprint, new_secret
from pipeline.errors import ConfigError
from pipeline.stages.ingress.authentication import read_keys

DEFAULT_FILE = Path("keys.toml")
_FIELDS = ("requests_per_min", "tokens_per_min", "max_concurrent", "max_priority", "expires")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "keys",
        help="make API keys and their limits",
        description="Make API keys, and show what those of a file may do. A server asks for keys when "
        'stages.ingress.options.keys_file names the file, such as keys_file = "keys.toml".',
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="make a key, add it to the file, and print it: it is shown only now")
    add.add_argument("name", help="whose it is; logs, metrics and fairness go by it")
    add.add_argument("--requests-per-min", type=_count, metavar="N")
    add.add_argument("--tokens-per-min", type=_count, metavar="N", help="of prompts and answers together")
    add.add_argument("--max-concurrent", type=_count, metavar="N", help="live requests")
    add.add_argument("--max-priority", type=int, default=0, metavar="N", help="default 0")
    add.add_argument("--expires", type=date.fromisoformat, metavar="YYYY-MM-DD", help="good before that day")
    add.set_defaults(run=run_add)
    listing = actions.add_parser("list", help="show the keys of the file and what they may do")
    listing.set_defaults(run=run_list)
    for action in (add, listing):
        action.add_argument("--file", type=Path, default=DEFAULT_FILE, help=f"default {DEFAULT_FILE}")


def run_add(args: argparse.Namespace) -> int:
    """The key goes to stdout, what is said of it to stderr."""
    path: Path = args.file
    if not _NAME.fullmatch(args.name):
        raise ConfigError(f"{args.name!r} cannot name a key: 1 to 64 letters, digits, - and _")
    if path.exists() and args.name in read_keys(path):
        raise ConfigError(f"{path} has a key named {args.name!r}; take another name, or delete its table")
    secret = new_secret()
    _append(path, _table(args, fingerprint(secret)))
    print(f"Added {args.name} to {path}; a server reads it when it starts.", file=sys.stderr)
    print("The key, which is shown only now:", file=sys.stderr, flush=True)
    print(secret)
    return 0


def run_list(args: argparse.Namespace) -> int:
    keys = read_keys(args.file)
    if not keys:
        print(f"No key in {args.file}. Make one: stageline keys add NAME")
        return 0
    table = Table()
    for heading in ("name", "requests/min", "tokens/min", "live", "priority", "expires"):
        table.add_column(heading)
    for name, key in keys.items():
        table.add_row(name, *_limits(key))
    Console(markup=False, highlight=False).print(table)
    return 0


def _limits(key: Key) -> list[str]:
    limits = (key.requests_per_min, key.tokens_per_min, key.max_concurrent)
    shown = ["any" if limit is None else f"{limit:,}" for limit in limits]
    return [*shown, f"up to {key.max_priority}", str(key.expires or "never")]


def _table(args: argparse.Namespace, sha256: str) -> str:
    given = {field: getattr(args, field) for field in _FIELDS}
    limits = [f"{field} = {value}" for field, value in given.items() if value]
    return "\n".join([f"[{args.name}]", f'sha256 = "{sha256}"', *limits, ""])


def _append(path: Path, table: str) -> None:
    """Readable by its owner alone from the first byte on."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
            file.write("\n" + table if path.stat().st_size else table)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value
