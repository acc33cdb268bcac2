"""Virtual time: a loop whose clock skips what nobody works in.

While something computes, here or in a thread that the loop was given work for, its clock goes as the
machine's does; where it would sleep until a timer, the clock jumps to it. So a recorded hour takes as long as
the stage works in it, and still comes with all its gaps: timers fire, patience runs out, policies see the
times that they saw. It knows nothing of processes, nor of threads that were not started by `run_in_executor`:
time may jump while they work.
"""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from time import perf_counter_ns
from typing import TypeVar, TypeVarTuple, Unpack

Args = TypeVarTuple("Args")
R = TypeVar("R")


class SkippingClock:
    """ns: perf_counter_ns, and what was skipped."""

    def __init__(self) -> None:
        self.skipped_ns = 0

    def __call__(self) -> int:
        return perf_counter_ns() + self.skipped_ns


class _SkippingSelector(selectors.DefaultSelector):
    """Never sleeps until a timer, unless `works` says that somebody works meanwhile."""

    def __init__(self, clock: SkippingClock, works: Callable[[], bool]) -> None:
        super().__init__()
        self._clock = clock
        self._works = works

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0 or self._works():
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self._clock.skipped_ns += int(timeout * 1e9) + 1
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `clock` is the one to hand to whatever runs on it."""

    def __init__(self) -> None:
        self.clock = SkippingClock()
        self._num_in_threads = 0
        super().__init__(_SkippingSelector(self.clock, lambda: self._num_in_threads > 0))

    def time(self) -> float:
        return self.clock() / 1e9

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Args]], R], *args: *Args
    ) -> "asyncio.Future[R]":
        future = super().run_in_executor(executor, func, *args)
        self._num_in_threads += 1
        future.add_done_callback(self._back)
        return future

    def _back(self, _: object) -> None:
        self._num_in_threads -= 1
