"""Framing: bytes of one HTTP/1.1 chunk and of one websocket text frame. No sockets here."""

import struct

_SHORT = 126
_LONG = 1 << 16
_FIN_TEXT = 0x81


def http_chunk(data: bytes) -> bytes:
    """`data` as one chunk of a chunked body (RFC 9112 section 7.1). An empty chunk would end the body."""
    if not data:
        raise ValueError("an empty chunk ends the body")
    return b"%x\r\n%b\r\n" % (len(data), data)


def text_frame(payload: bytes) -> bytes:
    """`payload` (UTF-8) as one final, unmasked text frame, as a server sends it (RFC 6455 section 5.2)."""
    size = len(payload)
    if size < _SHORT:
        return bytes((_FIN_TEXT, size)) + payload
    if size < _LONG:
        return struct.pack("!BBH", _FIN_TEXT, 126, size) + payload
    return struct.pack("!BBQ", _FIN_TEXT, 127, size) + payload
