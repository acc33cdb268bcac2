"""What a server sends, taken apart as cheaply as can be: frames (RFC 6455) and chunks (RFC 9112). No sockets.

Each reader takes the bytes at hand and gives back what is whole, and the rest.
"""

import struct
from typing import NamedTuple

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
_MASKED = 0x80
_NO_MASK = bytes(4)
"""A mask of zeros leaves the payload as it is: it hides nothing, but this client meets no proxy."""


class Frame(NamedTuple):
    opcode: int
    payload: bytes


class Answer(NamedTuple):
    """The head of an HTTP response."""

    status: int
    headers: dict[str, str]
    """By lower-case name."""


def client_frame(opcode: int, payload: bytes) -> bytes:
    """One final frame as a client sends it: masked."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, _MASKED | size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, _MASKED | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, _MASKED | 127, size)
    return head + _NO_MASK + payload


def take_frames(data: bytes) -> tuple[list[Frame], bytes]:
    """The whole frames at the start of `data`, unmasked and unfragmented as this server sends them."""
    frames: list[Frame] = []
    at, end = 0, len(data)
    while end - at >= 2:
        size, begin = data[at + 1], at + 2
        if size == 126:
            begin += 2
            size = int.from_bytes(data[at + 2 : begin])
        elif size == 127:
            begin += 8
            size = int.from_bytes(data[at + 2 : begin])
        if begin + size > end:
            break
        frames.append(Frame(data[at] & 0x0F, data[begin : begin + size]))
        at = begin + size
    return frames, data[at:]


def take_head(data: bytes) -> tuple[Answer | None, bytes]:
    """The head of a response; None until it is whole."""
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return None, data
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Answer(int(first.split(" ")[1]), {name.lower(): value.strip() for name, _, value in pairs}), rest


def take_chunks(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole chunks of a chunked body; the empty chunk that ends it is b""."""
    chunks: list[bytes] = []
    at = 0
    while (line_end := data.find(b"\r\n", at)) >= 0:
        begin = line_end + 2
        end = begin + int(data[at:line_end], 16)
        if end + 2 > len(data):
            break
        chunks.append(data[begin:end])
        at = end + 2
    return chunks, data[at:]
