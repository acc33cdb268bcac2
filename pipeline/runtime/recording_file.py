"""RecordingFile: a recording under way. A thread writes it, for the loop never waits for a disk."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter_ns

from pipeline.errors import StagelineError
from pipeline.runtime.recording import BATCH, END, HEADER, MAGIC, Batch, End, Header, frame

CHUNK_BYTES = 1 << 16
FLUSH_NS = int(0.5e9)
"""What was added is handed to the thread in chunks, or when a batch comes so long after the last one."""
MAX_UNWRITTEN_BYTES = 16 << 20
"""More than a disk may be behind by."""
_END_BYTES = 256
"""Kept free for the end."""


class RecordingFile:
    """Made, added to and ended on one thread. Never larger than `max_bytes`."""

    def __init__(
        self, path: Path, header: Header, max_bytes: int, clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        """Raises StagelineError if there is such a file already, or it cannot be written."""
        self.path = path
        self.num_bytes = self.num_batches = self.num_messages = 0
        """Added so far."""
        self.fault = ""
        """Why the thread has given up; empty: it has not."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._flushed_ns = clock()
        self._chunk = bytearray()
        self._num_written = 0
        self._chunks: SimpleQueue[bytes | None] = SimpleQueue()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise StagelineError(f"{path}: cannot be written: {error.strerror}") from error
        self._thread = threading.Thread(target=self._write, name="recording", daemon=True)
        self._thread.start()
        self._append(MAGIC + frame(HEADER, header))
        self._flush()

    @property
    def is_behind(self) -> bool:
        """The disk is too slow."""
        return self.num_bytes - self._num_written > MAX_UNWRITTEN_BYTES

    def add(self, batch: Batch) -> bool:
        """False: it did not fit, and nothing was added."""
        framed = frame(BATCH, batch)
        if self.num_bytes + len(framed) + _END_BYTES > self._max_bytes:
            return False
        self._append(framed)
        self.num_batches += 1
        self.num_messages += len(batch.messages)
        if len(self._chunk) >= CHUNK_BYTES or self._clock() - self._flushed_ns >= FLUSH_NS:
            self._flush()
        return True

    def end(self, reason: str, num_lost: int) -> None:
        """Nothing more is added; the thread writes what there is, and ends."""
        self._append(frame(END, End(reason, self.num_batches, self.num_messages, num_lost)))
        self._flush()
        self._chunks.put(None)

    def join(self) -> None:
        """Until all of it is in the file. Waits for the disk; after `end`."""
        self._thread.join()

    def _append(self, framed: bytes) -> None:
        self._chunk += framed
        self.num_bytes += len(framed)

    def _flush(self) -> None:
        self._chunks.put(bytes(self._chunk))
        self._chunk.clear()
        self._flushed_ns = self._clock()

    def _write(self) -> None:
        try:
            while (chunk := self._chunks.get()) is not None:
                if not self.fault:
                    self._put(chunk)
        finally:
            os.close(self._fd)

    def _put(self, chunk: bytes) -> None:
        try:
            left = memoryview(chunk)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self.fault = f"cannot be written: {error.strerror}"
        self._num_written += len(chunk)
