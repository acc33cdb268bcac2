"""Trace points: fixed tuples in a bounded ring. Nothing is formatted on the hot path.

A point is (time ns, Point as an int, name, key, count): `name` is the stage, `key` a request or step id (-1:
none), `count` how many messages or rows it covers. Off costs one attribute test.
"""

from collections import deque
from enum import IntEnum
from time import perf_counter_ns

TracePoint = tuple[int, int, str, int, int]


class Point(IntEnum):
    # of a stage, recorded by the runtime for every stage author
    HANDLED = 0
    """The time is that at which the batch was taken, `key` how long handle() took, ns."""
    REFUSED = 2
    # of a request
    ARRIVED = 20
    TOKENIZED = 21
    SCHEDULED = 22
    FIRST_TOKEN = 23
    FINISHED = 24
    PREEMPTED = 25


class Trace:
    """The ring. Single loop: other threads hand their times to the loop, which records them."""

    __slots__ = ("_ring", "enabled")

    def __init__(self, capacity: int = 65_536, *, enabled: bool = True) -> None:
        self._ring: deque[TracePoint] = deque(maxlen=capacity)
        self.enabled = enabled

    def record(
        self, point: Point, name: str, key: int = -1, count: int = 1, at_ns: int | None = None
    ) -> None:
        if self.enabled:
            # an int, not the enum's member: the collector need not walk tuples of ints and strings for ever
            self._ring.append((at_ns or perf_counter_ns(), int(point), name, key, count))

    def points(self, since_ns: int = 0) -> list[TracePoint]:
        """A copy, oldest first, of the points at or after `since_ns`; of the whole ring it takes 0.3 ms."""
        if since_ns <= 0:
            return list(self._ring)
        return [point for point in self._ring if point[0] >= since_ns]
