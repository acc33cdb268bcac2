"""Recordings: what one stage took from its inbox, in a file.

  magic    21 bytes
  frames   4 bytes length of the body, 4 bytes Adler-32 of it (RFC 1950: half of what CRC-32 costs), 1 byte
           kind, all little endian; then the body

The first frame is the `Header`, the last one the `End`, both msgpack maps; between them each is an array of
`Batch`es, in msgpack too. Times are in ns since the recording's begin. A file without its end, since who
wrote it was killed, is read as far as it goes.

A file knows no message: who writes it brings what msgpack can write, who reads it may bring a codec.
"""

import zlib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from pipeline.errors import StagelineError
from pipeline.messages import recorded

MAGIC = b"stageline recording \n"
VERSION = 2
"""Of the file's form. Rises when a reader of the version before would misread it. 1, which is still read: a
message was a string of bytes with its fields in it."""
FRAME = Struct("<IIc")
HEADER, BATCHES, END = b"H", b"B", b"E"

T = TypeVar("T")
Decode = Callable[[str, bytes | msgspec.Raw], Any]
"""Of a message's kind and bytes. Raises StagelineError."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded, and where."""

    version: int = VERSION
    schema: int
    """Of the messages (messages.recorded)."""
    stage: str
    """Whose inbox it was, by its name in the graph,"""
    links: tuple[str, ...]
    """and which of the links to it: "schedule->detokenize"."""
    use: str
    """The stage's class, by import path, and"""
    options: dict[str, Any]
    """its options."""
    model: str
    """As clients call it."""
    is_redacted: bool
    begun_at: str
    """The time of day, ISO 8601."""
    begin_ns: int
    """By the clock of those times that are in the messages."""
    stageline: str
    """The version of the program."""
    device: bytes = b""
    """The DeviceReady that was last told when the recording began, as `decode` reads it; empty: none was."""


class End(msgspec.Struct, frozen=True):
    reason: str
    num_batches: int
    num_messages: int
    num_lost: int = 0
    """Steps that are not in it, because the device was lost before they were done."""


class Entry(NamedTuple):
    """One message, as it was taken."""

    at_ns: int
    """Since the recording's begin: when it was sent (below 0: before),"""
    taken_ns: int
    """and when it was taken."""
    is_control: bool
    """It was read before the data of its batch."""
    batch: int
    """Rises from 0: all that have the same were taken at once."""
    message: Any


class Recording(NamedTuple):
    header: Header
    entries: list[Entry]
    """In the order in which the stage was given them."""
    end: End | None
    """None: nothing says how it ended;"""
    cut: str = ""
    """and this, where the file ends."""


Written: TypeAlias = tuple[int, str, Any]
"""One message to be written: when it was sent, its kind, and what has its fields."""


class Batch(NamedTuple):
    """What was taken at once."""

    taken_ns: int
    num_control: int
    """So many of the first messages."""
    messages: list[Written]


class _Batch(msgspec.Struct, Generic[T], array_like=True):
    """As it is read."""

    taken_ns: int
    num_control: int
    messages: list[tuple[int, str, T]]


_BATCHES: dict[int, msgspec.msgpack.Decoder[Any]] = {
    1: msgspec.msgpack.Decoder(list[_Batch[bytes]]),
    2: msgspec.msgpack.Decoder(list[_Batch[msgspec.Raw]]),
}
"""By the file's version."""


def read(path: Path, decode: Decode = recorded.decode, schema: int = recorded.SCHEMA) -> Recording:
    """All of a file. StagelineError, which names it, for what is no recording, newer than this, or damaged.

    Args:
        schema: the newest of the messages that `decode` knows.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StagelineError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return _read(data, decode, schema)
    except StagelineError as error:
        raise StagelineError(f"{path}: {error}") from error


def _read(data: bytes, decode: Decode, schema: int) -> Recording:
    if not data.startswith(MAGIC):
        raise StagelineError("is no recording of Stageline's")
    frames = _Frames(data)
    header = _header(next(frames, None), schema)
    entries: list[Entry] = []
    end: End | None = None
    numbers = count()
    for kind, body, at in frames:
        if kind == END:
            end = _part(body, msgspec.msgpack.Decoder(End), at)
            break
        for batch in _part(body, _BATCHES[header.version], at):
            entries += _entries(batch, next(numbers), decode, at)
    return Recording(header, entries, end, "" if end else frames.cut)


class _Frames(Iterator[tuple[bytes, bytes, int]]):
    """(kind, body, where it begins) of each frame, up to the last one that is whole."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = len(MAGIC)

    @property
    def cut(self) -> str:
        return f"cut off at byte {self._at:,} of {len(self._data):,}: nothing after it can be read"

    def __next__(self) -> tuple[bytes, bytes, int]:
        begin = self._at
        body = begin + FRAME.size
        if body > len(self._data):
            raise StopIteration
        length, checksum, kind = FRAME.unpack_from(self._data, begin)
        end = body + length
        if end > len(self._data) or not length:  # after a crash of the machine the end may be zeros
            raise StopIteration
        content = self._data[body:end]
        if zlib.adler32(content) != checksum:
            if not self._data[end:].strip(b"\0"):
                raise StopIteration
            raise StagelineError(f"is damaged at byte {begin:,}: its checksum is not that of what is there")
        self._at = end
        return kind, content, begin


def _header(first: tuple[bytes, bytes, int] | None, schema: int) -> Header:
    if first is None or first[0] != HEADER:
        raise StagelineError("ends before its header does")
    _, body, at = first
    versions = _part(body, msgspec.msgpack.Decoder(_Versions), at)
    if versions.version not in _BATCHES or versions.schema > schema:
        raise StagelineError(
            f"is of version {versions.version} with messages of schema {versions.schema}; "
            f"this Stageline reads up to {VERSION} and {schema}"
        )
    return _part(body, msgspec.msgpack.Decoder(Header), at)


class _Versions(msgspec.Struct):
    """What is read before anything else is believed."""

    version: int
    schema: int


def _part(body: bytes, decoder: msgspec.msgpack.Decoder[T], at: int) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StagelineError(f"is damaged at byte {at:,}: {error}") from error


def _entries(batch: _Batch[Any], number: int, decode: Decode, at: int) -> Iterator[Entry]:
    for index, (sent_ns, kind, data) in enumerate(batch.messages):
        try:
            message = decode(kind, data)
        except StagelineError as error:
            raise StagelineError(f"is damaged in the frame at byte {at:,}: {error}") from error
        yield Entry(sent_ns, batch.taken_ns, index < batch.num_control, number, message)
