"""The kernels' shared library: compiled on this machine at the first start, then taken from the cache.

The cache is $XDG_CACHE_HOME/stageline/host (~/.cache/... without that variable). A library's name is a hash
of all that it was made of, and it appears under that name only when it is whole: two servers that start at
once both compile, and the later one replaces a file by its equal.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoint.store import models_folder

SOURCES = Path(__file__).parent / "kernels"
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++20", "-O3", "-ffp-contract=off", "-fopenmp", "-fvisibility=hidden", "-fPIC", "-shared")
"""No contraction: a product and a sum are rounded once only where a kernel says so, in all kernels alike."""
TIMEOUT_S = 300


class HostUnavailable(Exception):
    """The host kernels cannot run here; the message is the reason, for a log line or a ConfigError."""


@dataclass(frozen=True, slots=True)
class Build:
    """What to compile: which compiler, and what beside FLAGS."""

    compiler: str
    flags: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        native = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
        return [self.compiler, *FLAGS, native, *self.flags, str(SOURCES / "exports.cpp")]


def find_compiler() -> str:
    """The first C++ compiler of this machine. Raises HostUnavailable."""
    for name in COMPILERS:
        if path := shutil.which(name):
            return path
    raise HostUnavailable(f"there is no C++ compiler ({', '.join(COMPILERS)}); install one, such as g++")


def host_folder() -> Path:
    return models_folder().parent / "host"


def cached_library(build: Build) -> Path:
    """Where the library of this build lies, whether it has been made or not."""
    made_of = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        made_of.update(source.name.encode() + source.read_bytes())
    for text in (*build.command[1:-1], _version(build.compiler), _cpu()):
        made_of.update(text.encode() + b"\0")
    return host_folder() / f"kernels-{made_of.hexdigest()[:20]}.so"


def provide_library(build: Build) -> Path:
    """From the cache, or compiled first. Raises HostUnavailable."""
    target = cached_library(build)
    return target if target.is_file() else compile_library(build, target)


def compile_library(build: Build, target: Path) -> Path:
    """Make the library, 3 seconds, and put it into the cache. Raises HostUnavailable."""
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
            draft = Path(folder) / target.name
            _run([*build.command, "-o", str(draft)])
            draft.chmod(0o700)
            draft.replace(target)
    except OSError as error:
        raise HostUnavailable(f"the host kernels cannot be put into the cache: {error}") from error
    return target


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise HostUnavailable(f"{command[0]} was not done within {TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise HostUnavailable(f"{command[0]} cannot compile the host kernels: {_first_error(done.stderr)}")


def _first_error(text: str) -> str:
    lines = text.strip().splitlines() or ["it said nothing"]
    return next((line for line in lines if "error" in line), lines[-1])


def _version(compiler: str) -> str:
    try:
        return subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise HostUnavailable(f"{compiler} does not run: {error}") from error


def _cpu() -> str:
    """What decides which instructions -march=native means."""
    try:
        found = re.search(r"^(flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return f"{platform.machine()} {found[0] if found else platform.processor()} {os.name}"
