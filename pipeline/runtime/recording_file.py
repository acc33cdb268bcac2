"""RecordingFile: a recording under way. A thread writes it, for the loop never waits for a disk."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter_ns

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

    def __init__(
        self, path: Path, header: Header, max_bytes: int, clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        """Raises StagelineError if there is such a file already, or it cannot be written."""
        self.path = path
        self.num_batches = self.num_messages = 0
        """Added so far."""
        self.fault = ""
        """Why the thread has given up; empty: it has not."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._flushed_ns = clock()
        self._waiting: list[Batch] = []
        self._waiting_bytes = 0
        """What they may take, at most."""
        self._num_packed = self._num_written = 0
        self._chunks: SimpleQueue[bytes | None] = SimpleQueue()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise StagelineError(f"{path}: cannot be written: {error.strerror}") from error
        self._thread = threading.Thread(target=self._write, name="recording", daemon=True)
        self._thread.start()
        self._put_chunk(MAGIC + frame(HEADER, header))

    @property
    def num_bytes(self) -> int:
        """So far, at most; once it has ended, exactly."""
        return self._num_packed + self._waiting_bytes

    @property
    def is_behind(self) -> bool:
        """The disk is too slow."""
        return self._num_packed - self._num_written > MAX_UNWRITTEN_BYTES

    def add(self, batch: Batch) -> bool:
        """False: it would not fit, and nothing was added."""
        messages = batch.messages
        num_bytes = _BATCH_BYTES + _MESSAGE_BYTES * len(messages)
        for _, _, data in messages:
            num_bytes += len(data)
        if not self._has_room(num_bytes):
            self._flush()  # what waits may come to less than was reckoned
            if not self._has_room(num_bytes):
                return False
        self._waiting.append(batch)
        self._waiting_bytes += num_bytes
        self.num_batches += 1
        self.num_messages += len(messages)
        if self._waiting_bytes >= CHUNK_BYTES or self._clock() - self._flushed_ns >= FLUSH_NS:
            self._flush()
        return True

    def end(self, reason: str, num_lost: int) -> None:
        """Nothing more is added; the thread writes what there is, and ends."""
        self._flush()
        self._put_chunk(frame(END, End(reason, self.num_batches, self.num_messages, num_lost)))
        self._chunks.put(None)

    def join(self) -> None:
        """Until all of it is in the file. Waits for the disk; after `end`."""
        self._thread.join()

    def _has_room(self, num_bytes: int) -> bool:
        return self.num_bytes + num_bytes + _END_BYTES <= self._max_bytes

    def _flush(self) -> None:
        if self._waiting:
            self._put_chunk(frame(BATCHES, self._waiting))
            self._waiting, self._waiting_bytes = [], 0
        self._flushed_ns = self._clock()

    def _put_chunk(self, chunk: bytes) -> None:
        self._num_packed += len(chunk)
        self._chunks.put(chunk)

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
