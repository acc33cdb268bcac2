"""What the first bytes of an image file say of it, read before any library sees the file.

PNG (RFC 2083), JPEG (ITU T.81) and WebP (RFC 9649). A header may lie; what a library makes of the file is
checked again.
"""

import struct
from typing import Literal, NamedTuple

Format = Literal["PNG", "JPEG", "WEBP"]

MAX_SCANS = 32
"""Of a progressive JPEG: each goes over the whole image, and may take a few bytes only. Usual are ten."""
_PNG = b"\x89PNG\r\n\x1a\n"
_NOT_SOF = frozenset({0xC4, 0xC8, 0xCC})
_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})
"""JPEG markers without a length."""


class ImageFault(Exception):
    """The file cannot be used. The text says why, and is for the client."""


class Header(NamedTuple):
    format: Format
    width: int
    height: int


def read_header(data: bytes) -> Header:
    """Raises ImageFault."""
    try:
        if data.startswith(_PNG):
            return _png(data)
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
    except (IndexError, ValueError, struct.error):
        raise ImageFault("the file is damaged") from None
    raise ImageFault("the file must be PNG, JPEG or WebP")


def _png(data: bytes) -> Header:
    if data[12:16] != b"IHDR":
        raise ValueError("no IHDR")
    return Header("PNG", *_numbers(">II", data, 16))


def _jpeg(data: bytes) -> Header:
    if data.count(b"\xff\xda") > MAX_SCANS:
        raise ImageFault(f"a JPEG may have at most {MAX_SCANS} scans")
    at = 2
    while True:
        if data[at] != 0xFF:
            raise ValueError("no marker")
        while data[at] == 0xFF:  # before a marker there may be more of them
            at += 1
        marker, at = data[at], at + 1
        if marker in _ALONE:
            continue
        (length,) = _numbers(">H", data, at)
        if 0xC0 <= marker <= 0xCF and marker not in _NOT_SOF:
            height, width = _numbers(">HH", data, at + 3)
            return Header("JPEG", width, height)
        if marker == 0xDA or length < 2:
            raise ValueError("no frame before the first scan")
        at += length


def _webp(data: bytes) -> Header:
    kind = data[12:16]
    if kind == b"VP8X":
        low, high, low_y, high_y = _numbers("<HBHB", data, 24)
        return Header("WEBP", (high << 16 | low) + 1, (high_y << 16 | low_y) + 1)
    if kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = _numbers("<I", data, 21)
        return Header("WEBP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = _numbers("<HH", data, 26)
        return Header("WEBP", width & 0x3FFF, height & 0x3FFF)
    raise ValueError("no image")


def _numbers(form: str, data: bytes, at: int) -> tuple[int, ...]:
    return struct.unpack_from(form, data, at)
