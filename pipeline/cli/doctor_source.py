"""Where `stageline doctor` gets its numbers: a server's admin port, saved evidence, loadgen's result.json."""

import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from pipeline.doctor import Diagnosis, diagnose
from pipeline.doctor.replay import VERSION, Replay, diagnose_replay
from pipeline.errors import StagelineError
from pipeline.telemetry import Evidence

TIMEOUT_S = 30.0


class _Kind(msgspec.Struct):
    """What tells the two kinds of file apart."""

    samples: msgspec.Raw = msgspec.Raw()
    workload: msgspec.Raw = msgspec.Raw()
    version: int | None = None


def fetch(url: str, last_s: float) -> bytes:
    """The server's evidence, as JSON. StagelineError says what to do if there is none."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise StagelineError(f"--url must begin with http:// or https://, got {url}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is near: no proxy
    try:
        with opener.open(f"{url.rstrip('/')}/api/evidence?last_s={last_s:g}", timeout=TIMEOUT_S) as response:
            body: bytes = response.read()
    except urllib.error.HTTPError as error:
        with error:
            raise StagelineError(
                f"{url} answered {error.code} {error.reason}: is that the admin port? The API's port has "
                "no evidence"
            ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise StagelineError(
            f"no admin port at {url}: {reason}. It is on by default, at 127.0.0.1:8001: see [admin] of "
            "config.toml, and name another with --url"
        ) from error
    return body


def read(path: Path) -> bytes:
    """A file's bytes. Raises StagelineError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise StagelineError(f"{path}: cannot be read: {error.strerror}") from error


def judge(body: bytes, origin: str) -> Diagnosis:
    """Evidence or a result.json, told apart by their fields; `origin` names it in errors (StagelineError)."""
    try:
        kind = msgspec.json.decode(body, type=_Kind)
        if bytes(kind.samples):
            return diagnose(msgspec.json.decode(body, type=Evidence))
        if bytes(kind.workload) and kind.version == VERSION:
            return diagnose_replay(msgspec.json.decode(body, type=Replay))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StagelineError(f"{origin}: is neither evidence nor a result of loadgen: {error}") from error
    if bytes(kind.workload):
        raise StagelineError(f"{origin}: is of version {kind.version}; this doctor reads {VERSION}")
    raise StagelineError(f"{origin}: is neither evidence (stageline doctor --save) nor a result of loadgen")
