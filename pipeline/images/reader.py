"""ImageReader: image files as a model takes them, read in a process of its own with limits (images.worker).

Pillow is loaded there only, not in the server.
"""

from hashlib import blake2b

import msgspec

from pipeline.checkpoint.vision import Vision
from pipeline.messages import PromptImage
from pipeline.runtime.confined import Bounds, Confined

DIGEST_BYTES = 32
_LOADED_BYTES = 192 << 20
"""Of memory, beside pixels."""
_COPIES = 4
"""Of an image that may be in memory at a time, at 4 bytes a pixel."""


class Opening(msgspec.Struct, frozen=True):
    """What the process is told first."""

    vision: Vision
    max_pixels: int


class Answer(msgspec.Struct, frozen=True):
    """To a file in base64."""

    fault: str | None
    """None: it could be read."""
    pixels: bytes = b""


class ImageRefused(ValueError):
    """It cannot be used. The text says why, and is for the client."""


class ImageReader:
    """One thread at a time.

    Args:
        max_pixels: of an image.
        timeout_s: for one.
    """

    def __init__(self, vision: Vision, max_pixels: int, timeout_s: float) -> None:
        words = msgspec.msgpack.encode(Opening(vision, max_pixels))
        bounds = Bounds(max(1, round(timeout_s)), _LOADED_BYTES + _COPIES * 4 * max_pixels)
        self._confined = Confined("pipeline.images.worker", words, bounds)
        self._timeout_s = timeout_s

    def start(self) -> None:
        """So that the first image need not wait for the process."""
        self._confined.start()

    def read(self, text: str) -> PromptImage:
        """`text`: a file in base64. Raises ImageRefused; within the time limit, once the process runs."""
        answer = self._confined.ask(text.encode("ascii", "replace"), self._timeout_s)
        if answer is None:
            raise ImageRefused(f"it takes more than {self._timeout_s:g} s or too much memory to read")
        read = msgspec.msgpack.decode(answer, type=Answer)
        if read.fault is not None:
            raise ImageRefused(read.fault)
        return PromptImage(read.pixels, blake2b(read.pixels, digest_size=DIGEST_BYTES).digest())

    def close(self) -> None:
        """Idempotent."""
        self._confined.close()
