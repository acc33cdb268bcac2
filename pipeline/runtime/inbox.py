"""Inbox: a bounded FIFO with two lanes, drained in batches.

Data messages wait for room (`send`) or are refused (`offer`) when the inbox is full. Control messages
(`post`) never wait and are read first; there are at most a few per live request, so they need no bound.
An inbox is read by one stage; where a stage is a pool, its instances share the inbox and each message
goes to one of them.

Between two batches its readers may be replaced (`pause`, `resume`). Whoever wants to see what is taken, batch
by batch, adds himself to `taps`; without one that costs a test per wake-up.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from time import perf_counter_ns
from typing import Generic, NamedTuple, TypeVar

import msgspec

from pipeline.errors import InboxClosed
from pipeline.runtime.histogram import Histogram

M = TypeVar("M")

ALL = 1 << 30


class Taken(NamedTuple, Generic[M]):
    """One batch, as a reader got it: the control messages first."""

    messages: list[M]
    """The reader's own list: to be read at once, and only read."""
    sent_ns: list[int]
    """When each was sent."""
    num_control: int
    taken_ns: int


Tap = Callable[[Taken[M]], None]


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
    """How many sends had to wait for room,"""
    blocked_ns: int
    """and for how long, all senders together, those that still wait included."""


class Inbox(Generic[M]):
    """See the module. Single loop: every method is called on the loop's thread, none is thread-safe.

    `data_waits` and `control_waits` hold how long each message of a lane that was taken had waited, in ns.
    """

    __slots__ = (
        "_blocked",
        "_blocked_ns",
        "_bound",
        "_clock",
        "_closed",
        "_control",
        "_control_times",
        "_data",
        "_data_times",
        "_is_paused",
        "_num_blocked",
        "_peak",
        "_posted",
        "_readers",
        "_refused",
        "_room_callbacks",
        "_sent",
        "_wakeups",
        "_writers",
        "control_waits",
        "data_waits",
        "taps",
    )

    def __init__(self, bound: int, clock: Callable[[], int] = perf_counter_ns) -> None:
        if bound < 1:
            raise ValueError("bound must be at least 1")
        self._bound = bound
        self._clock = clock
        self._data: deque[M] = deque()
        self._data_times: deque[int] = deque()
        """When each message of the lane came, ns."""
        self.data_waits = Histogram()
        self._control: deque[M] = deque()
        self._control_times: deque[int] = deque()
        self.control_waits = Histogram()
        self._readers: deque[tuple[asyncio.Future[None], bool]] = deque()
        self._writers: deque[asyncio.Future[None]] = deque()
        self._room_callbacks: list[Callable[[], None]] = []
        self.taps: tuple[Tap[M], ...] = ()
        """Each is shown every batch that is taken, on the loop; it must not raise."""
        self._closed = False
        self._is_paused = False
        self._peak = self._sent = self._posted = self._refused = self._wakeups = self._blocked = 0
        self._num_blocked = 0
        """Sends that wait now."""
        self._blocked_ns = 0
        """Of those that do not wait any more; less the time at which each other one began."""

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_paused(self) -> bool:
        return self._is_paused

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
        if not self._closed and len(self._data) >= self._bound:
            await self._wait_for_room()
        if self._closed:
            raise InboxClosed
        self._append(message)

    def post(self, message: M) -> None:
        """Append to the control lane; never waits, allowed after close."""
        self._control.append(message)
        self._control_times.append(self._clock())
        self._posted += 1
        self._wake_reader(control=True)

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, the next time a reader makes room."""
        self._room_callbacks.append(callback)

    async def recv_many(self, limit: int = ALL) -> list[M]:
        """Wait for a message; take all control messages, then at most `limit` data messages.

        Returns [] once the inbox is closed and empty, and while it is paused. With limit 0 only control
        messages are taken and waited for: the data stays queued, and so holds back whoever sends it.
        """
        while not self._is_paused and not self._control and not (self._data and limit):
            if self._closed and not self._data:
                return []
            await self._wait(wants_data=limit > 0)
        return [] if self._is_paused else self._take(limit)

    async def recv_control(self) -> list[M]:
        """Wait for control messages alone, also after close: what a stage needs to finish its work."""
        while not self._control:
            await self._wait(wants_data=False)
        return self._take(0)

    def pause(self) -> None:
        """Readers of `recv_many` get [] until `resume`; what is sent stays queued. Idempotent."""
        self._is_paused = True
        self._wake_readers()

    def resume(self) -> None:
        self._is_paused = False

    def close(self) -> None:
        """Refuse new data; readers still get what is queued, then []. Idempotent."""
        self._closed = True
        self._wake_readers()
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
            self._blocked_ns + self._num_blocked * self._clock(),
        )

    async def _wait_for_room(self) -> None:
        """Until there is room or the inbox is closed."""
        self._blocked += 1
        self._num_blocked += 1
        self._blocked_ns -= self._clock()
        try:
            while not self._closed and len(self._data) >= self._bound:
                waiter = asyncio.get_running_loop().create_future()
                self._writers.append(waiter)
                try:
                    await waiter
                except BaseException:
                    if waiter.done() and not waiter.cancelled():
                        self._wake_writers()  # this writer was given room that it will not use
                    raise
        finally:
            self._num_blocked -= 1
            self._blocked_ns += self._clock()

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
        num_control = len(batch)
        self._control.clear()
        num_data = min(limit, len(self._data))
        if num_data == len(self._data):
            batch.extend(self._data)
            self._data.clear()
        else:
            batch.extend(self._data.popleft() for _ in range(num_data))
            self._wake_reader(control=False)  # a pool: there is work for a second reader
        taken_ns = self._clock()
        if self.taps:
            sent_ns = [*self._control_times, *islice(self._data_times, num_data)]
            for tap in self.taps:
                tap(Taken(batch, sent_ns, num_control, taken_ns))
        self._note_waits(num_data, taken_ns)
        self._wake_writers()
        if self._room_callbacks and len(self._data) < self._bound:
            callbacks, self._room_callbacks = self._room_callbacks, []
            for callback in callbacks:
                callback()
        return batch

    def _note_waits(self, num_data: int, now_ns: int) -> None:
        """All control messages and so many data messages are taken now."""
        if self._control_times:
            for time_ns in self._control_times:
                self.control_waits.add(now_ns - time_ns)
            self._control_times.clear()
        for _ in range(num_data):
            self.data_waits.add(now_ns - self._data_times.popleft())

    def _append(self, message: M) -> None:
        self._data.append(message)
        self._data_times.append(self._clock())
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

    def _wake_readers(self) -> None:
        for reader, _ in self._readers:
            if not reader.done():
                reader.set_result(None)
        self._readers.clear()

    def _wake_writers(self) -> None:
        room = self._bound - len(self._data)
        while self._writers and room > 0:
            waiter = self._writers.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1
