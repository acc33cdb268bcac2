"""A running server's admin port, as the commands ask it."""

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pipeline.errors import StagelineError

TIMEOUT_S = 30.0


class NoServer(StagelineError):
    """Nobody answers there (any more)."""


class _Failure(msgspec.Struct):
    message: str


class _Failed(msgspec.Struct):
    error: _Failure


class AdminPort:
    """Raises StagelineError with the server's reason, or NoServer."""

    def __init__(self, url: str) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise StagelineError(f"--url must begin with http:// or https://, got {url}")
        self._url = url.rstrip("/")
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is near: no proxy

    def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """The answer's body. `body` goes as JSON."""
        with self._answer(method, path, body) as response:
            return response.read()

    def save(self, path: str, out: Path) -> None:
        """The answer's body, into a new file that only the user can read."""
        with self._answer("GET", path) as response:
            try:
                with open(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    shutil.copyfileobj(response, file)
            except OSError as error:
                raise StagelineError(f"{out}: cannot be written: {error.strerror}") from error

    @contextmanager
    def _answer(self, method: str, path: str, body: Any = None) -> Iterator[HTTPResponse]:
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                yield response
        except urllib.error.HTTPError as error:
            with error:
                raise StagelineError(_reason(error.read(), error)) from error
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise NoServer(
                f"no admin port at {self._url}: {reason}. It is on by default, at 127.0.0.1:8001: see "
                "[admin] of config.toml, and name another with --url"
            ) from error


def _reason(body: bytes, error: urllib.error.HTTPError) -> str:
    """The server's own words, if the body has its error object."""
    try:
        return msgspec.json.decode(body, type=_Failed).error.message
    except msgspec.MsgspecError:
        return f"the server answered {error.code} {error.reason}: is that the admin port?"
