"""Inbox: a bounded FIFO with two lanes, drained in batches.

Data messages wait for room (`send`) or are refused (`offer`) when the inbox is full. Control messages
(`post`) never wait and are read first; there are at most a few per live request, so they need no bound.
An inbox is read by one stage; where a stage is a pool, its instances share the inbox and each message
goes to one of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from pipeline.errors import InboxClosed

M = TypeVar("M")

ALL = 1 << 30


class InboxStats(msgspec.Struct, frozen=True, gc=False):
    """Counts since start, but for `depth`, which is now."""

    depth: int
    bound: int
    peak_depth: int
    sent: int
    posted: int
    refused: int
    wakeups: int
    blocked: int
    """How many sends had to wait for room."""


class Inbox(Generic[M]):
    """See the module. Single loop: every method is called on the loop's thread, none is thread-safe."""

    __slots__ = (
        "_blocked",
        "_bound",
        "_closed",
        "_control",
        "_data",
        "_peak",
        "_posted",
        "_readers",
        "_refused",
        "_room_callbacks",
        "_sent",
        "_wakeups",
        "_writers",
    )

    def __init__(self, bound: int) -> None:
        if bound < 1:
            raise ValueError("bound must be at least 1")
        self._bound = bound
        self._data: deque[M] = deque()
        self._control: deque[M] = deque()
        self._readers: deque[tuple[asyncio.Future[None], bool]] = deque()
        self._writers: deque[asyncio.Future[None]] = deque()
        self._room_callbacks: list[Callable[[], None]] = []
        self._closed = False
        self._peak = self._sent = self._posted = self._refused = self._wakeups = self._blocked = 0

    @property
    def is_closed(self) -> bool:
        return self._closed

    def room(self) -> int:
        """How many `offer`s in a row would succeed now."""
        return max(0, self._bound - len(self._data))

    def offer(self, message: M) -> bool:
        """Append unless full; never waits. Raises InboxClosed."""
        if self._closed:
            raise InboxClosed
        if len(self._data) >= self._bound:
            self._refused += 1
            return False
        self._append(message)
        return True

    async def send(self, message: M) -> None:
        """Append, waiting for room. Cancelling the wait sends nothing. Raises InboxClosed."""
        waited = False
        while not self._closed and len(self._data) >= self._bound:
            if not waited:
                waited, self._blocked = True, self._blocked + 1
            waiter = asyncio.get_running_loop().create_future()
            self._writers.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter.done() and not waiter.cancelled():
                    self._wake_writers()  # this writer was given room that it will not use
                raise
        if self._closed:
            raise InboxClosed
        self._append(message)

    def post(self, message: M) -> None:
        """Append to the control lane; never waits, allowed after close."""
        self._control.append(message)
        self._posted += 1
        self._wake_reader(control=True)

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, the next time a reader makes room."""
        self._room_callbacks.append(callback)

    async def recv_many(self, limit: int = ALL) -> list[M]:
        """Wait for a message; take all control messages, then at most `limit` data messages.

        Returns [] once the inbox is closed and empty. With limit 0 only control messages are taken
        and waited for: the data stays queued, and so holds back whoever sends it.
        """
        while not self._control and not (self._data and limit):
            if self._closed and not self._data:
                return []
            await self._wait(wants_data=limit > 0)
        return self._take(limit)

    async def recv_control(self) -> list[M]:
        """Wait for control messages alone, also after close: what a stage needs to finish its work."""
        while not self._control:
            await self._wait(wants_data=False)
        return self._take(0)

    def close(self) -> None:
        """Refuse new data; readers still get what is queued, then []. Idempotent."""
        self._closed = True
        for reader, _ in self._readers:
            if not reader.done():
                reader.set_result(None)
        self._readers.clear()
        for waiter in self._writers:
            if not waiter.done():
                waiter.set_result(None)
        self._writers.clear()

    def stats(self) -> InboxStats:
        return InboxStats(
            len(self._data),
            self._bound,
            self._peak,
            self._sent,
            self._posted,
            self._refused,
            self._wakeups,
            self._blocked,
        )

    async def _wait(self, *, wants_data: bool) -> None:
        reader = asyncio.get_running_loop().create_future()
        entry = (reader, wants_data)
        self._readers.append(entry)
        try:
            await reader
        except BaseException:
            if entry in self._readers:
                self._readers.remove(entry)
            elif self._data or self._control:
                self._wake_reader(control=bool(self._control))  # pass the wake-up on to another reader
            raise

    def _take(self, limit: int) -> list[M]:
        batch = list(self._control)
        self._control.clear()
        if limit >= len(self._data):
            batch.extend(self._data)
            self._data.clear()
        else:
            batch.extend(self._data.popleft() for _ in range(limit))
            if self._data:
                self._wake_reader(control=False)  # a pool: there is work for a second reader
        self._wake_writers()
        if self._room_callbacks and len(self._data) < self._bound:
            callbacks, self._room_callbacks = self._room_callbacks, []
            for callback in callbacks:
                callback()
        return batch

    def _append(self, message: M) -> None:
        self._data.append(message)
        self._sent += 1
        if len(self._data) > self._peak:
            self._peak = len(self._data)
        self._wake_reader(control=False)

    def _wake_reader(self, *, control: bool) -> None:
        for index, (reader, wants_data) in enumerate(self._readers):
            if control or wants_data:
                del self._readers[index]
                if not reader.done():
                    self._wakeups += 1
                    reader.set_result(None)
                    return
                return self._wake_reader(control=control)

    def _wake_writers(self) -> None:
        room = self._bound - len(self._data)
        while self._writers and room > 0:
            waiter = self._writers.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1
