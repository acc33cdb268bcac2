"""The frames of a recording's file as they are written (layout: runtime.recording).

Messages are written straight into the frame that goes to the disk: nothing is copied on its way there.
"""

import zlib
from struct import Struct

import msgspec

from pipeline.runtime.recording import BATCHES, FRAME, Batch, End, Header

_ARRAY = Struct(">BI")
"""How msgpack begins an array of any length, and that length."""
_ARRAY_32 = 0xDD
_KIND = FRAME.size - 1

_encode_into = msgspec.msgpack.Encoder().encode_into


def frame(kind: bytes, body: Header | End) -> bytearray:
    """To be sealed."""
    made = _begun(kind)
    _encode_into(body, made, -1)
    return made


def seal(frame: bytearray) -> bytearray:
    """The same, as it stands in the file. Of a long one that takes time, in which other threads run."""
    with memoryview(frame) as view, view[FRAME.size :] as body:
        FRAME.pack_into(frame, 0, len(body), zlib.adler32(body), bytes(frame[_KIND : FRAME.size]))
    return frame


class Batches:
    """One frame of batches while it grows."""

    def __init__(self) -> None:
        self._frame = _begun(BATCHES) + bytes(_ARRAY.size)
        self.num_batches = 0
        self.num_bytes = len(self._frame)

    def add(self, batch: Batch) -> None:
        """Raises what msgpack raises of a message that it cannot write, and then has nothing of the batch."""
        try:
            _encode_into(batch, self._frame, -1)
        except BaseException:
            del self._frame[self.num_bytes :]
            raise
        self.num_batches += 1
        self.num_bytes = len(self._frame)

    def take_back(self, num_bytes: int) -> None:
        """The last batch: so many bytes were there before it."""
        del self._frame[num_bytes:]
        self.num_batches -= 1
        self.num_bytes = num_bytes

    def frame(self) -> bytearray:
        """To be sealed; nothing is added any more."""
        _ARRAY.pack_into(self._frame, FRAME.size, _ARRAY_32, self.num_batches)
        return self._frame


def _begun(kind: bytes) -> bytearray:
    return bytearray(FRAME.pack(0, 0, kind))
