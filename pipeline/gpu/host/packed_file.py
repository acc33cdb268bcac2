"""Packed weights on disk: the next start maps them instead of packing them again.

In $XDG_CACHE_HOME/stageline/host, beside the compiled kernels. A file is the weights' memory as it is, then
its Footer, then the footer's length and MAGIC. It is mapped read-only, so processes share it. It appears
under its name when it is whole; its name is a hash of the model's files, of the code that packs, of the
instruction set and of the choice. The folder holds MAX_BYTES of such files at most: those used longest ago
go first.
"""

import hashlib
import mmap
import os
import struct
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import structlog

from pipeline.gpu.host.build import host_folder
from pipeline.gpu.host.layout import Choice, Layout
from pipeline.gpu.host.weights import Bytes

MAGIC = b"STAGELN1"
MAX_BYTES = 16 << 30
CHUNK = 16 << 20
"""Bytes that one checksum is of."""
DRAFT_S = 3600
"""A draft that is older was left behind by a process that ended."""
SUFFIX = ".weights"
_TAIL = struct.Struct("<Q8s")
_PACKAGE = Path(__file__).parents[1]


class Footer(msgspec.Struct, frozen=True):
    """What a file says of itself."""

    layout: Layout
    crc32: list[int]
    """Of every CHUNK of the weights."""


def packed_path(identity: str, choice: Choice, isa: str) -> Path:
    """Where the packed weights of these files lie, whether they have been packed or not."""
    made_of = hashlib.sha256(f"{identity}\0{choice}\0{isa}".encode())
    for source in sorted([*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.h")]):
        made_of.update(source.name.encode() + source.read_bytes())
    return host_folder() / f"packed-{made_of.hexdigest()[:20]}{SUFFIX}"


def map_packed(path: Path) -> tuple[Layout, Bytes] | None:
    """The weights, read-only; None if there are none, or, with a log line, if the file is damaged."""
    try:
        return _mapped(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
        log.warning(
            "packed weights in the cache cannot be used: they are packed again",
            path=str(path),
            reason=str(error),
        )
        return None


def _mapped(path: Path) -> tuple[Layout, Bytes]:
    """Raises ValueError with what is wrong with the file."""
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # refuses an empty file
    footer = _footer(memory)
    weights = np.frombuffer(memory, np.uint8, footer.layout.num_bytes)
    if _checksums(weights) != footer.crc32:
        raise ValueError("a checksum is wrong")
    os.utime(path)
    return footer.layout, weights


def save_packed(path: Path, layout: Layout, weights: Bytes) -> None:
    """Keep them for the next start. Raises OSError."""
    footer = msgspec.json.encode(Footer(layout, _checksums(weights)))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_room(path.parent, weights.nbytes)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix="packing-", suffix=SUFFIX)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            for part in (weights.data, footer, _TAIL.pack(len(footer), MAGIC)):
                file.write(part)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def make_room(folder: Path, num_bytes: int) -> None:
    """Remove the files used longest ago, until num_bytes more are within MAX_BYTES; and old drafts."""
    for draft in folder.glob(f"packing-*{SUFFIX}"):
        if time.time() - draft.stat().st_mtime > DRAFT_S:
            draft.unlink(missing_ok=True)
    room = MAX_BYTES - num_bytes
    files = [(file.stat(), file) for file in folder.glob(f"packed-*{SUFFIX}")]
    for stat, file in sorted(files, key=lambda each: each[0].st_mtime, reverse=True):
        room -= stat.st_size
        if room < 0:
            file.unlink(missing_ok=True)


def _footer(memory: mmap.mmap) -> Footer:
    """Raises ValueError if the end of the file is not that of a whole one."""
    end = len(memory) - _TAIL.size
    length, magic = _TAIL.unpack(memory[end:]) if end >= 0 else (0, b"")
    if magic != MAGIC or length > end:
        raise ValueError("it is cut short")
    footer = msgspec.json.decode(memory[end - length : end], type=Footer)  # its errors are ValueErrors
    if footer.layout.num_bytes != end - length:
        raise ValueError("its parts do not add up")
    return footer


def _checksums(weights: Bytes) -> list[int]:
    """All threads read: this is also what brings a file's pages in."""
    parts = [weights[at : at + CHUNK] for at in range(0, weights.size, CHUNK)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(zlib.crc32, parts))
