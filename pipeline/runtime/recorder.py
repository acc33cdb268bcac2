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


class Writing(NamedTuple):
    """How the messages of one class are written; see messages.recorded."""

    kind: str
    written: Callable[[Any], Any] | None = None
    """What is written in a message's place, in msgpack; None: itself."""
    is_ready: Callable[[Any], bool] | None = None
    """Whether `written` would not wait; raises if it always would. None: it never does."""


class Recorder:
    """start() -> ... -> stop(). It ends by itself too; `ended` says so.

    Args:
        writing: of a class; StagelineError: its messages cannot be written.
        kinds: of the messages that are written; None: all.
        begin_ns: by the inbox's clock.
        ended: called once, on the loop, when nothing more is added; the file may not be whole yet.
    """

    def __init__(
        self,
        inbox: Inbox[Any],
        file: RecordingFile,
        writing: Callable[[type], Writing],
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
        self._writing = writing
        self._writings: dict[type, Writing | None] = {}
        """Of the classes that were seen; None: of those that are left out."""
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
        self._add_kept(is_last=True)
        self.file.end(self.reason, self.num_lost)
        self._ended()

    def _tap(self, taken: Taken[Any]) -> None:
        try:
            if self._kept or not self._add(taken, waits=True):
                self._kept.append(taken._replace(messages=list(taken.messages)))
                self._add_kept()
        except Exception as error:  # whoever takes the messages is not to suffer
            self._kept.clear()
            self.end(f"fault: {error!r}")

    def _add_kept(self, *, is_last: bool = False) -> None:
        """Those at the front whose results are there; the last time without the others."""
        while self._kept and self._add(self._kept[0], waits=not is_last and len(self._kept) < MAX_KEPT):
            self._kept.popleft()

    def _add(self, taken: Taken[Any], *, waits: bool) -> bool:
        """False: it has to wait for the device."""
        messages, all_sent_ns, num_control, taken_ns = taken
        begin_ns, writings = self._begin_ns, self._writings
        written: list[Written] = []
        num_lost = 0
        for index, message in enumerate(messages):
            kind = type(message)
            writing = writings[kind] if kind in writings else self._learn(kind)
            if writing is None:
                num_control -= index < taken.num_control
            elif writing.is_ready is None or (is_ready := _answer(writing.is_ready, message)):
                fields = message if writing.written is None else writing.written(message)
                written.append((all_sent_ns[index] - begin_ns, writing.kind, fields))
            elif waits and is_ready is not None:
                return False
            else:
                num_lost += 1
        self.num_lost += num_lost
        if written and not self.file.add(Batch(taken_ns - begin_ns, num_control, written)):
            self.end(self.file.refusal)
        return True

    def _learn(self, kind: type) -> Writing | None:
        writing = self._writing(kind)
        is_wanted = self._kinds is None or writing.kind in self._kinds
        self._writings[kind] = writing if is_wanted else None
        return self._writings[kind]


def _answer(is_ready: Callable[[Any], bool], message: object) -> bool | None:
    """None: it never will be, for its device is lost."""
    try:
        return is_ready(message)
    except Exception:
        return None
