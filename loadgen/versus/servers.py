"""The servers of a comparison: a TOML file with one table for each."""

import os
import re
import shlex
import tomllib
from pathlib import Path

import msgspec

from loadgen.errors import UsageError

HOST = "127.0.0.1"


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one server is started. In `command`, {host}, {port} and the environment's $NAMEs are filled in."""

    command: str
    model: str | None = None
    """As requests name it; None: the one that the server lists."""
    ready_path: str = "/health"
    """Answers 200 when it is ready."""
    env: dict[str, str] = {}
    """Beside the environment of loadgen; $NAME is filled in here too."""

    def command_line(self, port: int) -> list[str]:
        """The words to start, with `env` in front of them if there is one.

        Raises:
            UsageError: a $NAME is not in the environment.
        """
        words = [_expanded(word) for word in shlex.split(self.command)]
        filled = [word.replace("{host}", HOST).replace("{port}", str(port)) for word in words]
        settings = [f"{name}={_expanded(value)}" for name, value in self.env.items()]
        return ["env", *settings, *filled] if settings else filled


def read_servers(path: Path) -> dict[str, Server]:
    """By name, in the order of the file; the first is the one that the others are peers of.

    Raises:
        UsageError: the file cannot be read, or a server's table is wrong.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
        servers = msgspec.convert(tables, dict[str, Server])
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is no TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}; expected a table for each server, with its command") from error
    if not servers:
        raise UsageError(f"{path}: names no server")
    for name, server in servers.items():
        _check(path, name, server)
        server.command_line(0)  # whether all names are set
    return servers


def _expanded(text: str) -> str:
    def value(name: re.Match[str]) -> str:
        try:
            return os.environ[name[1]]
        except KeyError as error:
            raise UsageError(f"{text}: {name[1]} is not set in the environment") from error

    return re.sub(r"\$(\w+)", value, text)


def _check(path: Path, name: str, server: Server) -> None:
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name):
        raise UsageError(f"{path}: [{name!r}]: a server's name has letters, digits and - _ . only")
    try:
        words = shlex.split(server.command)
    except ValueError as error:
        raise UsageError(f"{path}: [{name}] command: {error}") from error
    if "{port}" not in server.command or not words:
        raise UsageError(f"{path}: [{name}] command: needs {{port}}, so that it listens where it is asked")
