"""WebSocket frames, sans I/O (RFC 6455, chapter 5), of a client without extensions.

By hand, for 50,000 frames a second must leave a core room for the rest.
"""

import base64
import hashlib
import secrets

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FIN = 0x80
_MASKED = 0x80


class FrameError(ValueError):
    """What came breaks the protocol."""


def key() -> str:
    """A new Sec-WebSocket-Key."""
    return base64.b64encode(secrets.token_bytes(16)).decode()


def accept(client_key: str) -> str:
    """The Sec-WebSocket-Accept that answers it."""
    return base64.b64encode(hashlib.sha1(client_key.encode() + _GUID).digest()).decode()


def client_frame(opcode: int, payload: bytes) -> bytes:
    """One whole frame, masked as a client's must be."""
    mask = secrets.token_bytes(4)
    size = len(payload)
    if size < 126:
        head = bytes((_FIN | opcode, _MASKED | size))
    elif size < 65536:
        head = bytes((_FIN | opcode, _MASKED | 126)) + size.to_bytes(2)
    else:
        head = bytes((_FIN | opcode, _MASKED | 127)) + size.to_bytes(8)
    return head + mask + masked(payload, mask)


class FrameReader:
    """A server's bytes, in any pieces, to whole messages.

    Args:
        max_bytes: of one message; a longer one breaks the connection.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._opcode = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """(opcode, payload) of every message that `data` ends; control frames between parts come at once.

        Raises:
            FrameError: masked, compressed, out of order or too long.
        """
        data = self._rest + data if self._rest else data
        messages: list[tuple[int, bytes]] = []
        at, size = 0, len(data)
        while size - at >= 2:
            first, length, begin = data[at], data[at + 1], at + 2
            if length > 125:
                length, begin = self._long(data, at, length)
            if begin + length > size:
                break
            at = begin + length
            if first == (_FIN | TEXT) and not self._opcode:
                messages.append((TEXT, data[begin:at]))
            else:
                self._other(first, data[begin:at], messages)
        self._rest = data[at:]
        return messages

    def _long(self, data: bytes, at: int, length: int) -> tuple[int, int]:
        """(length, where the payload begins) of a frame with an extended length."""
        if length & _MASKED:
            raise FrameError("a server's frame is masked")
        begin = at + (4 if length == 126 else 10)
        if len(data) < begin:
            return 0, len(data) + 1  # not whole yet
        length = int.from_bytes(data[at + 2 : begin])
        if length > self._max_bytes:
            raise FrameError(f"a frame of {length} bytes is over {self._max_bytes}")
        return length, begin

    def _other(self, first: int, payload: bytes, messages: list[tuple[int, bytes]]) -> None:
        """Anything but a text message in one frame."""
        opcode, is_last = first & 0x0F, bool(first & _FIN)
        if first & 0x70:
            raise FrameError("a frame uses an extension that was not agreed on")
        if opcode >= CLOSE:
            messages.append((opcode, payload))
            return
        if (opcode == CONTINUATION) != bool(self._opcode):
            raise FrameError("parts of messages are out of order")
        self._opcode = self._opcode or opcode
        self._parts.append(payload)
        self._num_bytes += len(payload)
        if self._num_bytes > self._max_bytes:
            raise FrameError(f"a message is over {self._max_bytes} bytes")
        if is_last:
            messages.append((self._opcode, b"".join(self._parts)))
            self._parts.clear()
            self._opcode = self._num_bytes = 0


def masked(payload: bytes, mask: bytes) -> bytes:
    """One XOR of two large integers: about 1 ms for a megabyte."""
    size = len(payload)
    stream = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload) ^ int.from_bytes(stream)).to_bytes(size)
