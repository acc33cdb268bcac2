"""Trace points in a bounded ring. Nothing is formatted on the hot path.

A point is (time ns, Point as an int, name, key, count): `name` is the stage, `key` a request or step id (-1:
none), `count` how many messages or rows it covers. Off costs one attribute test.
"""

from collections.abc import Iterable
from enum import IntEnum
from itertools import chain
from struct import Struct
from time import perf_counter_ns

TracePoint = tuple[int, int, str, int, int]

_NUMBERS = Struct("qqqq")
"""Time, point, key, count."""
_pack = _NUMBERS.pack_into
_MIN_PAGE = 4096
"""Of memory, on any machine."""


class Point(IntEnum):
    # of a stage, recorded by the runtime for every stage author
    HANDLED = 0
    """The time is that at which the batch was taken, `key` how long handle() took, ns."""
    SWAPPED = 1
    """Another one was to take its place: `key` how long the inbox was paused, ns; `count` how it ended."""
    # of a request
    ARRIVED = 20
    TOKENIZED = 21
    SCHEDULED = 22
    FIRST_TOKEN = 23
    FINISHED = 24
    PREEMPTED = 25


class Trace:
    """The ring. Single loop: other threads hand their times to the loop, which records them.

    A point is packed into memory that is there already: a ring of objects would give each new one memory that
    no cache holds any more, at ten times the cost.
    """

    __slots__ = ("_capacity", "_names", "_num_recorded", "_numbers", "enabled")

    def __init__(self, capacity: int = 65_536, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._capacity = capacity
        self._numbers = bytearray(_NUMBERS.size * capacity)
        self._numbers[::_MIN_PAGE] = bytes(len(self._numbers[::_MIN_PAGE]))  # there from the start
        self._names = [""] * capacity
        self._num_recorded = 0

    def record(
        self, point: Point, name: str, key: int = -1, count: int = 1, at_ns: int | None = None
    ) -> None:
        if self.enabled:
            place = self._num_recorded % self._capacity
            _pack(self._numbers, _NUMBERS.size * place, at_ns or perf_counter_ns(), point, key, count)
            self._names[place] = name
            self._num_recorded += 1

    def points(self, since_ns: int = 0) -> list[TracePoint]:
        """A copy, oldest first, of the points at or after `since_ns`; a full ring takes some 20 ms."""
        numbers = list(_NUMBERS.iter_unpack(self._numbers))
        if self._num_recorded < self._capacity:
            places: Iterable[int] = range(self._num_recorded)
        else:
            oldest = self._num_recorded % self._capacity
            places = chain(range(oldest, self._capacity), range(oldest))
        found = ((*numbers[place], self._names[place]) for place in places)
        return [(at, point, name, key, count) for at, point, key, count, name in found if at >= since_ns]
