"""Profiles of a stage on its stand, as files that need nothing else to be looked at."""

from contextlib import AbstractContextManager
from pathlib import Path

from pipeline.bench.alone import Alone
from pipeline.bench.profile.calls import calls
from pipeline.bench.profile.cpu import cpu
from pipeline.bench.profile.device import device
from pipeline.bench.profile.memory import memory
from pipeline.bench.profile.wall import wall

SUFFIXES = {"cpu": ".svg", "wall": ".html", "memory": ".html", "cprofile": ".prof"}
_KINDS = {"cpu": cpu, "wall": wall, "memory": memory, "cprofile": calls}

__all__ = ["SUFFIXES", "profiled", "suffix_of"]


def suffix_of(alone: Alone, kind: str) -> str:
    return ".html" if _is_of_device(alone, kind) else SUFFIXES[kind]


def profiled(alone: Alone, kind: str, path: Path) -> tuple[Alone, AbstractContextManager[object]]:
    """The stage as it can be profiled, and what profiles it while it is open; then the file is there.

    Raises ConfigError if a library is not installed; when it is opened, if the machine does not allow it.
    """
    if _is_of_device(alone, kind):
        return device(alone, path)
    return alone, _KINDS[kind](path)


def _is_of_device(alone: Alone, kind: str) -> bool:
    return kind == "cpu" and alone.owns_device and alone.runner is None
