"""Replay: the frames of one request that its client may not have, so that it can go on at another socket."""

from collections import deque

from pipeline.core.wire.fields import wrong


class Replay:
    """Frames have indices, from 1 on and without holes. Kept is what is not acknowledged.

    A client that says the index of the last frame it has gets all after it, each once and in order, however
    often it comes back.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        """Of the frames that are kept."""
        self._frames: deque[bytes] = deque()
        self._acknowledged = 0

    @property
    def next_index(self) -> int:
        return self._acknowledged + len(self._frames) + 1

    @property
    def is_empty(self) -> bool:
        """All that was sent is acknowledged."""
        return not self._frames

    def keep(self, frame: bytes) -> None:
        """The frame with `next_index`."""
        self._frames.append(frame)
        self.num_bytes += len(frame)

    def acknowledge(self, index: int) -> None:
        """The client has all frames up to `index`; it may say so again. Raises RequestError for a frame that
        it cannot have."""
        if index >= self.next_index:
            raise wrong("index", f"at most {self.next_index - 1}, the last frame", index)
        while self._acknowledged < index:
            self.num_bytes -= len(self._frames.popleft())
            self._acknowledged += 1

    def after(self, index: int) -> list[bytes]:
        """All frames after `index`, which is acknowledged by that. Raises RequestError where it was told
        before that it has more than that, or cannot have as much."""
        if index < self._acknowledged:
            raise wrong("index", f"at least {self._acknowledged}, which was acknowledged", index)
        self.acknowledge(index)
        return list(self._frames)
