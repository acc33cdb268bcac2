"""Alarm: calls back on a loop that sleeps, to some 0.1 ms of the time.

uvloop's timers are good to 1 ms. A loop that passes again and again until it is time keeps its core warmer
than a server's is, and holds the GIL against threads of the stage that it waits for. So a thread sleeps in
its place, and wakes it as a server is woken: from outside.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from threading import Condition, Thread
from time import perf_counter_ns
from types import TracebackType

Callback = Callable[[], object]


class Alarm:
    """To be entered on the loop; what is due later than its end is never called."""

    def __init__(self) -> None:
        self._dues: list[tuple[int, int, Callback]] = []
        """A heap: when, a number that keeps the order, and what is called."""
        self._numbers = count()
        self._has_ended = False
        self._changed = Condition()
        self._thread = Thread(target=self._run, name="alarm", daemon=True)

    def __enter__(self) -> "Alarm":
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify()
        self._thread.join()

    def call_later(self, delay_s: float, callback: Callback) -> None:
        due_ns = perf_counter_ns() + int(delay_s * 1e9)
        with self._changed:
            heappush(self._dues, (due_ns, next(self._numbers), callback))
            if self._dues[0][0] == due_ns:
                self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._has_ended:
                left_s = (self._dues[0][0] - perf_counter_ns()) / 1e9 if self._dues else None
                if left_s is None or left_s > 0:
                    self._changed.wait(left_s)
                else:
                    self._loop.call_soon_threadsafe(heappop(self._dues)[2])
