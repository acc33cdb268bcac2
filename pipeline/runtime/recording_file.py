"""RecordingFile: a recording under way. A thread writes it, for the loop never waits for a disk."""

import os
import threading
from pathlib import Path
from queue import SimpleQueue

from pipeline.errors import StagelineError
from pipeline.runtime.recording import END, HEADER, MAGIC, Batch, End, Header
from pipeline.runtime.recording_frame import Batches, frame, seal

CHUNK_BYTES = 1 << 18
FLUSH_NS = int(0.5e9)
"""What was added goes to the thread in chunks, or with a batch so long after the last one. To wake the thread
costs as much as to write 64 KiB."""
MAX_UNWRITTEN_BYTES = 16 << 20
"""More than a disk may be behind by."""
_END_BYTES = 256
"""Kept free for the end."""


class RecordingFile:
    """Made, added to and ended on one thread. Never larger than `max_bytes`."""

    def __init__(self, path: Path, header: Header, max_bytes: int) -> None:
        """Raises StagelineError if there is such a file already, or it cannot be written."""
        self.path = path
        self.refusal = ""
        """Why it took a batch no more; empty: it takes them."""
        self.fault = ""
        """Why the thread has given up; empty: it has not."""
        self._room = max_bytes - _END_BYTES - len(MAGIC)
        """For what is not given to the thread."""
        self._waiting = Batches()
        self._due_ns = 0
        """A batch that was taken then or later is not to wait."""
        self._num_given, self._num_written = len(MAGIC), 0
        """Bytes that were given to the thread, and those that it has dealt with."""
        self._given_batches = 0
        self.num_messages = 0
        self._frames: SimpleQueue[bytearray | None] = SimpleQueue()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise StagelineError(f"{path}: cannot be written: {error.strerror}") from error
        self._thread = threading.Thread(target=self._write, name="recording", daemon=True)
        self._thread.start()
        self._give(frame(HEADER, header))

    @property
    def num_bytes(self) -> int:
        """So far, as they will be in the file."""
        return self._num_given + (self._waiting.num_bytes if self._waiting.num_batches else 0)

    @property
    def num_batches(self) -> int:
        return self._given_batches + self._waiting.num_batches

    def add(self, batch: Batch) -> bool:
        """Most batches just wait for their chunk. False: `refusal` says why it is not added.

        Raises what msgpack raises of a message that it cannot write.
        """
        waiting = self._waiting
        size = waiting.num_bytes
        if size > CHUNK_BYTES or batch.taken_ns >= self._due_ns:
            self._give_waiting()
            self._due_ns = batch.taken_ns + FLUSH_NS
            if refusal := self._refusal():
                self.refusal = refusal
                return False
            waiting = self._waiting
            size = waiting.num_bytes
        waiting.add(batch)
        if waiting.num_bytes > self._room:
            waiting.take_back(size)
            self.refusal = "it is as large as it may be"
            return False
        self.num_messages += len(batch.messages)
        return True

    def end(self, reason: str, num_lost: int) -> None:
        """Nothing more is added; the thread writes what there is, and ends."""
        self._give_waiting()
        self._give(frame(END, End(reason, self.num_batches, self.num_messages, num_lost)))
        self._frames.put(None)

    def join(self) -> None:
        """Until all of it is in the file. Waits for the disk; after `end`."""
        self._thread.join()

    def _refusal(self) -> str:
        if self.fault:
            return self.fault
        return "the disk is too slow" if self._num_given - self._num_written > MAX_UNWRITTEN_BYTES else ""

    def _give_waiting(self) -> None:
        if self._waiting.num_batches:
            self._given_batches += self._waiting.num_batches
            self._give(self._waiting.frame())
            self._waiting = Batches()

    def _give(self, frame: bytearray) -> None:
        self._num_given += len(frame)
        self._room -= len(frame)
        self._frames.put(frame)

    def _write(self) -> None:
        try:
            self._put(MAGIC)
            self._num_written += len(MAGIC)
            while (frame := self._frames.get()) is not None:
                if not self.fault:
                    self._put(seal(frame))
                self._num_written += len(frame)
        finally:
            os.close(self._fd)

    def _put(self, data: bytes | bytearray) -> None:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self.fault = f"cannot be written: {error.strerror}"
