"""RecordingFile: a recording under way. A thread writes it, for the loop never waits for a disk."""

import os
import threading
from pathlib import Path
from queue import SimpleQueue

from pipeline.errors import StagelineError
from pipeline.runtime.recording import BATCHES, END, HEADER, MAGIC, Batch, End, Header, frame

CHUNK_BYTES = 1 << 16
FLUSH_NS = int(0.5e9)
"""What was added is packed and given to the thread in chunks, or with a batch so long after the last one."""
MAX_UNWRITTEN_BYTES = 16 << 20
"""More than a disk may be behind by."""
_END_BYTES = 256
"""Kept free for the end."""
_BATCH_BYTES, _MESSAGE_BYTES = 32, 64
"""What each takes beside its messages' data, at most."""


class RecordingFile:
    """Made, added to and ended on one thread. Never larger than `max_bytes`."""

    def __init__(self, path: Path, header: Header, max_bytes: int) -> None:
        """Raises StagelineError if there is such a file already, or it cannot be written."""
        self.path = path
        self.refusal = ""
        """Why it took a batch no more; empty: it takes them."""
        self.fault = ""
        """Why the thread has given up; empty: it has not."""
        self._max_bytes = max_bytes
        self._waiting: list[Batch] = []
        self._waiting_bytes = 0
        """What they may take, at most."""
        self._due_ns = 0
        """A batch that was taken then or later is not to wait."""
        self._num_packed = self._num_written = 0
        """Bytes that were given to the thread, and those that it has dealt with."""
        self._packed_batches = self._packed_messages = 0
        self._chunks: SimpleQueue[bytes | None] = SimpleQueue()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise StagelineError(f"{path}: cannot be written: {error.strerror}") from error
        self._thread = threading.Thread(target=self._write, name="recording", daemon=True)
        self._thread.start()
        self._give(MAGIC + frame(HEADER, header))

    @property
    def num_bytes(self) -> int:
        """So far, at most; once it has ended, exactly."""
        return self._num_packed + self._waiting_bytes

    @property
    def num_batches(self) -> int:
        return self._packed_batches + len(self._waiting)

    @property
    def num_messages(self) -> int:
        return self._packed_messages + sum(len(batch.messages) for batch in self._waiting)

    def add(self, batch: Batch, num_bytes: int) -> bool:
        """Costs little: most batches just wait for their chunk. False: `refusal` says why it is not added.

        Args:
            num_bytes: of its messages' data.
        """
        num_bytes += _BATCH_BYTES + _MESSAGE_BYTES * len(batch.messages)
        if self._waiting_bytes + num_bytes > self._chunk_room or batch.taken_ns >= self._due_ns:
            self._pack()
            self._due_ns = batch.taken_ns + FLUSH_NS
            self.refusal = self._refusal(num_bytes)
            if self.refusal:
                return False
        self._waiting.append(batch)
        self._waiting_bytes += num_bytes
        return True

    def end(self, reason: str, num_lost: int) -> None:
        """Nothing more is added; the thread writes what there is, and ends."""
        self._pack()
        self._give(frame(END, End(reason, self.num_batches, self.num_messages, num_lost)))
        self._chunks.put(None)

    def join(self) -> None:
        """Until all of it is in the file. Waits for the disk; after `end`."""
        self._thread.join()

    def _refusal(self, num_bytes: int) -> str:
        if self.fault:
            return self.fault
        if self._num_packed - self._num_written > MAX_UNWRITTEN_BYTES:
            return "the disk is too slow"
        return "it is as large as it may be" if num_bytes > self._room else ""

    @property
    def _room(self) -> int:
        return self._max_bytes - self._num_packed - _END_BYTES

    def _pack(self) -> None:
        if self._waiting:
            self._packed_messages, self._packed_batches = self.num_messages, self.num_batches
            self._give(frame(BATCHES, self._waiting))
            self._waiting, self._waiting_bytes = [], 0

    def _give(self, chunk: bytes) -> None:
        self._num_packed += len(chunk)
        self._chunk_room = min(CHUNK_BYTES, self._room)
        self._chunks.put(chunk)

    def _write(self) -> None:
        try:
            while (chunk := self._chunks.get()) is not None:
                if not self.fault:
                    self._put(chunk)
                self._num_written += len(chunk)
        finally:
            os.close(self._fd)

    def _put(self, chunk: bytes) -> None:
        try:
            left = memoryview(chunk)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self.fault = f"cannot be written: {error.strerror}"
