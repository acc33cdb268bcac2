"""AdminToken: a secret in a file that only the user who runs the server can read.

The admin port has no password, and more of it than can be looked at must not be there for every user of the
machine, nor for a page in his browser. Whoever reads the file is the user. The commands find it by the port.
"""

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from pipeline.errors import StagelineError

_SCHEME = "Bearer "


def token_path(port: int) -> Path:
    """In $XDG_RUNTIME_DIR, which is the user's own; else in his cache folder."""
    runtime, cache = os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("XDG_CACHE_HOME")
    folder = Path(runtime or cache or Path.home() / ".cache")
    return folder / "stageline" / f"admin-{port}.token"


def authorization(port: int) -> str:
    """The header's value for a server on this machine. Raises StagelineError."""
    path = token_path(port)
    try:
        return _SCHEME + path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StagelineError(
            f"{path} cannot be read: {error}. It is there while a server of yours runs with "
            "`[admin] allow_swap = true` and this admin port"
        ) from error


class AdminToken:
    """That of one server."""

    def __init__(self) -> None:
        self._secret = secrets.token_urlsafe(32)
        self._path: Path | None = None

    def write(self, port: int) -> None:
        """So that only the user can read it. Raises StagelineError."""
        path = token_path(port)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(self._secret)
        except OSError as error:
            raise StagelineError(f"{path}: cannot be written: {error.strerror}") from error
        self._path = path

    def remove(self) -> None:
        """Idempotent."""
        path, self._path = self._path, None
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def admits(self, header: str | None) -> bool:
        """Whether an Authorization header shows it."""
        return hmac.compare_digest((header or "").encode(), (_SCHEME + self._secret).encode())
