"""On what a run was made."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

_PACKAGES = ("stageline", "aiohttp", "uvloop", "msgspec", "numpy")


class Machine(msgspec.Struct, frozen=True):
    """Of the generator; the server's may be another."""

    cpu: str
    cores: int
    """That this process may use."""
    platform: str
    python: str
    packages: dict[str, str]
    """Version by name; "stageline" is the distribution that loadgen comes with."""


def this_machine() -> Machine:
    """Reads files and package metadata: not for the hot path."""
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        platform=platform.platform(),
        python=platform.python_version(),
        packages={name: _version(name) for name in _PACKAGES},
    )


def _cpu() -> str:
    """Linux has no other place for the model's name; elsewhere `platform` knows what there is to know."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
