"""Copies: what a stage takes, for its shadow: bounded, and never in the way of the stage.

Messages are copied by the codec of recordings, so that nobody shares what the other may change, and no client
is written to twice. A step on the device is shared: it can only be read.

It begins and ends where a batch is taken: there the stage is between two batches.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from pipeline.messages.recorded import decode, encode, kind_of
from pipeline.runtime.inbox import Inbox, Taken

MAX_BATCHES, MAX_BYTES = 64, 16 << 20
"""That may wait for the shadow."""


class _Copy(NamedTuple):
    kind: str
    data: bytes
    shared: object
    """The message itself, where it is not copied."""


class Copies:
    """Of one inbox.

    Args:
        begin: called when the first batch is taken, before the stage handles it, with the time.
        end: called when it is closed, with the time; the stage does not handle a batch then.
        heard: given each message that is taken; gives the one that the stage gets instead.
    """

    def __init__(
        self,
        inbox: Inbox[Any],
        begin: Callable[[int], None],
        end: Callable[[int], None],
        heard: Callable[[Any], Any],
    ) -> None:
        self._inbox = inbox
        self._begin, self._end = begin, end
        self._heard = heard
        self._batches: deque[list[_Copy]] = deque()
        self._num_bytes = 0
        self._has_come = asyncio.Event()
        self.num_batches = self.num_messages = 0
        self.request_ids: set[int] = set()
        self.is_ending = False
        """Whoever sets it wants no more: it is closed when the next batch is taken."""
        self.end_ns: int | None = None
        """When it was closed,"""
        self.reason = ""
        """and why, if not because somebody wanted it."""
        inbox.taps = (*inbox.taps, self._tap)

    def close(self, at_ns: int) -> None:
        """No more is copied; what waits can still be taken. Idempotent."""
        if self.end_ns is None:
            self.end_ns = at_ns
            self._end(at_ns)
            self._inbox.taps = tuple(tap for tap in self._inbox.taps if tap != self._tap)
            self._has_come.set()

    async def next(self) -> list[Any] | None:
        """The next batch; None: there is none, and no other will come."""
        while not self._batches:
            if self.end_ns is not None:
                return None
            self._has_come.clear()
            await self._has_come.wait()
        batch = self._batches.popleft()
        self._num_bytes -= sum(len(copy.data) for copy in batch)
        return [copy.shared if copy.shared is not None else decode(copy.kind, copy.data) for copy in batch]

    def _tap(self, taken: Taken[Any]) -> None:
        if not self.is_ending and (len(self._batches) >= MAX_BATCHES or self._num_bytes >= MAX_BYTES):
            self.is_ending, self.reason = True, f"it fell {len(self._batches)} batches behind"
            self._batches.clear()
        if self.is_ending:
            self.close(taken.taken_ns)
            return
        try:
            if not self.num_batches:
                self._begin(taken.taken_ns)
            self._take(taken.messages)
        except Exception as error:  # of a stage's export_state; a tap must not raise
            self.reason = f"it cannot be copied: {error!r}"
            self.close(taken.taken_ns)

    def _take(self, messages: list[Any]) -> None:
        batch = [_copy(message) for message in messages]
        for index, message in enumerate(messages):
            self.request_ids.add(getattr(message, "request_id", -1))
            messages[index] = self._heard(message)
        self._batches.append(batch)
        self._num_bytes += sum(len(copy.data) for copy in batch)
        self.num_batches += 1
        self.num_messages += len(batch)
        self._has_come.set()


def _copy(message: object) -> _Copy:
    if hasattr(message, "token_ids_sync"):
        return _Copy("", b"", message)
    return _Copy(kind_of(message), encode(message), None)
