"""`python -m pipeline.images.worker`: reads image files of strangers, confined (runtime.confined)."""

import binascii
from collections.abc import Callable

import msgspec

from pipeline.images.header import ImageFault
from pipeline.images.pixels import pixels_of
from pipeline.images.reader import Answer, Opening
from pipeline.runtime.confined import answer_all


def _open(words: bytes) -> Callable[[bytes], bytes]:
    opening = msgspec.msgpack.decode(words, type=Opening)
    return lambda question: msgspec.msgpack.encode(_read(question, opening))


def _read(text: bytes, opening: Opening) -> Answer:
    """`text`: the file in base64 (RFC 4648)."""
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
        return Answer(None, pixels_of(data, opening.vision, opening.max_pixels))
    except binascii.Error:
        return Answer("it is no base64")
    except ImageFault as fault:
        return Answer(str(fault))


if __name__ == "__main__":
    answer_all(_open)
