"""Frames: what the server and the process of its device workers say to each other, over one socket.

  4 bytes  length of the body, little endian
  1 byte   kind
  body     msgpack of the kind's message (msgspec: typed, nothing is executed)

Per step it is one frame each way, 10 us in all for 64 decode rows: docs/decisions/
0026-where-the-device-worker-lives.md. Times in them are of CLOCK_MONOTONIC, which all processes of a machine
share.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Any, Literal

import msgspec

from pipeline.messages import DeviceReady, DiskMoved, DiskMoves, Logprobs, Message, StepPlan

HEAD = Struct("<IB")


class RunnerSpec(Message, frozen=True):
    """How to open runners, in words: what a process is told that has nothing of this one's."""

    opener: str
    """Import path of a callable: (options, num_workers) -> a callable that opens one runner a call."""
    options: bytes
    """What it is called with: msgpack, as it wants it."""
    num_workers: int = 1
    log_level: str = "info"
    log_format: Literal["text", "json"] = "text"


class Ready(Message, frozen=True):
    """All workers are open."""

    capacity: DeviceReady


class StepDone(Message, frozen=True):
    """What a StepHandle tells once its step is done."""

    worker: int
    step_id: int
    begin_ns: int
    end_ns: int
    token_ids: list[int]
    drops: list[list[int]]
    embeddings: list[bytes]
    logprobs: Logprobs | None = None
    scores: Logprobs | None = None


class Fault(Message, frozen=True):
    """Something was raised."""

    kind: str
    """The name of its class."""
    text: str


class Renew(Message, frozen=True):
    """Drop all plans from before, and go on."""


class Kind(IntEnum):
    OPEN = 0
    PLAN = 1
    MOVES = 2
    RENEW = 3
    READY = 4
    STEP = 5
    MOVED = 6
    FAULT = 7


_TYPES: dict[Kind, Any] = {
    Kind.OPEN: RunnerSpec,
    Kind.PLAN: StepPlan,
    Kind.MOVES: DiskMoves,
    Kind.RENEW: Renew,
    Kind.READY: Ready,
    Kind.STEP: StepDone,
    Kind.MOVED: DiskMoved,
    Kind.FAULT: Fault,
}
_KINDS = {message: kind for kind, message in _TYPES.items()}


_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(message) for kind, message in _TYPES.items()}


def encode(message: Any) -> bytes:
    """A whole frame."""
    body = _encoder.encode(message)
    return HEAD.pack(len(body), _KINDS[type(message)]) + body


def decode(kind: int, body: bytes | memoryview) -> Any:
    """The message. Raises msgspec.ValidationError or ValueError for what is none."""
    return _decoders[Kind(kind)].decode(body)


class FrameReader:
    """Cuts a stream of bytes, as they come, into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that are whole by now."""
        self._bytes += data
        while len(self._bytes) >= HEAD.size:
            length, kind = HEAD.unpack_from(self._bytes)
            end = HEAD.size + length
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[HEAD.size : end])
            del self._bytes[:end]
            yield decode(kind, body)
