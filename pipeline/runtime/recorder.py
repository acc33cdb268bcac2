"""Recorder: writes what one stage takes from its inbox, until a bound is reached or it is stopped.

It is one of the inbox's taps, which cost nothing while there are none. A step whose results are still on the
device is kept, with all that is taken after it, until they have come.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from pipeline.runtime.inbox import Inbox, Taken
from pipeline.runtime.recording import Batch, Written
from pipeline.runtime.recording_file import RecordingFile

MAX_KEPT = 256
"""Batches that wait for a device. One that is lost may never answer."""


class Codec(NamedTuple):
    """How messages are written; see messages.recorded."""

    kind_of: Callable[[object], str]
    is_ready: Callable[[object], bool]
    encode: Callable[[object], bytes]


class Recorder:
    """start() -> ... -> stop(). It ends by itself too; `ended` says so.

    Args:
        kinds: of the messages that are written; None: all.
        begin_ns: by the inbox's clock.
        ended: called once, on the loop, when nothing more is added; the file may not be whole yet.
    """

    def __init__(
        self,
        inbox: Inbox[Any],
        file: RecordingFile,
        codec: Codec,
        begin_ns: int,
        max_s: float,
        kinds: Collection[str] | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.file = file
        self.reason = ""
        """Why it has ended; empty: it has not."""
        self.num_lost = 0
        self._inbox = inbox
        self._codec = codec
        self._begin_ns = begin_ns
        self._max_s = max_s
        self._kinds = kinds
        self._ended = ended
        self._kept: deque[Taken[Any]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._inbox.taps += (self._tap,)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._max_s, self.end, f"it has run for {self._max_s:g} s")

    async def stop(self, reason: str) -> None:
        """The file is whole when this returns. Idempotent."""
        self.end(reason)
        await asyncio.to_thread(self.file.join)

    def end(self, reason: str) -> None:
        """Add nothing more."""
        if self.reason:
            return
        self.reason = reason
        self._inbox.taps = tuple(tap for tap in self._inbox.taps if tap != self._tap)
        if self._timer is not None:
            self._timer.cancel()
        self._add_ready(is_last=True)
        self.file.end(self.reason, self.num_lost)
        self._ended()

    def _tap(self, taken: Taken[Any]) -> None:
        try:
            self._kept.append(self._chosen(taken))
            self._add_ready()
        except Exception as error:  # whoever takes the messages is not to suffer
            self._kept.clear()
            self.end(f"fault: {error!r}")

    def _chosen(self, taken: Taken[Any]) -> Taken[Any]:
        """What is to be written of it, in lists of its own."""
        messages, sent_ns, num_control, taken_ns = taken
        kinds, kind_of = self._kinds, self._codec.kind_of
        if kinds is None:
            return Taken(list(messages), sent_ns, num_control, taken_ns)
        chosen = [index for index, message in enumerate(messages) if kind_of(message) in kinds]
        return Taken(
            [messages[index] for index in chosen],
            [sent_ns[index] for index in chosen],
            sum(index < num_control for index in chosen),
            taken_ns,
        )

    def _add_ready(self, *, is_last: bool = False) -> None:
        """Those at the front whose results are there; the last time without the others."""
        while self._kept:
            written = self._written(self._kept[0], waits=not is_last and len(self._kept) < MAX_KEPT)
            if written is None:
                return
            self._kept.popleft()
            if written.messages and not self.file.add(written):
                self._kept.clear()
                self.end("it is as large as it may be")
        if self.file.fault or self.file.is_behind:
            self.end(self.file.fault or "the disk is too slow")

    def _written(self, taken: Taken[Any], *, waits: bool) -> Batch | None:
        """None: it has to wait for the device."""
        kind_of, encode, begin_ns = self._codec.kind_of, self._codec.encode, self._begin_ns
        ready: list[Written] = []
        for message, sent_ns in zip(taken.messages, taken.sent_ns, strict=True):
            kind, is_ready = kind_of(message), self._is_ready(message)
            if is_ready:
                ready.append(Written(sent_ns - begin_ns, kind, encode(message)))
            elif waits and is_ready is not None:
                return None
        self.num_lost += len(taken.messages) - len(ready)
        return Batch(taken.taken_ns - begin_ns, taken.num_control, ready)

    def _is_ready(self, message: object) -> bool | None:
        """None: it never will be, for its device is lost."""
        try:
            return self._codec.is_ready(message)
        except Exception:
            return None
