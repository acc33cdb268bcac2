"""Vitals: does the loop come to its timers in time, does the garbage collector stop it, what do threads use.

Two hooks run from start() to stop(), at 0.3 % of an idle core and less of a busy one; the rest is read when
asked.
"""

import asyncio
import gc
import os
import time
from collections.abc import Callable

from pipeline.runtime.histogram import Histogram
from pipeline.telemetry.process import rss_bytes, run_delay_ns, thread_cpu_ns

LAG_PERIOD_S = 0.05
THREADS = ("device", "tokenize")
"""Threads that are ours, by name; the loop's own goes by `loop`."""

Clock = Callable[[], int]


class LoopLag:
    """A timer on the running loop that measures how late it fires.

    A callback that holds the loop for S shows as a lag of S less LAG_PERIOD_S at least.
    """

    def __init__(self, clock: Clock) -> None:
        self.lags = Histogram()
        """Lateness, ns; one value every LAG_PERIOD_S."""
        self.longest_ns = 0
        """Since whoever reads it last set it to 0."""
        self._clock = clock
        self._due_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due_ns = self._clock() + int(LAG_PERIOD_S * 1e9)
        self._timer = asyncio.get_running_loop().call_later(LAG_PERIOD_S, self._fire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        lag_ns = max(0, self._clock() - self._due_ns)
        self.lags.add(lag_ns)
        self.longest_ns = max(self.longest_ns, lag_ns)
        self.start()


class GcPauses:
    """Times every collection of the process while started. A collection stops all threads."""

    def __init__(self, clock: Clock) -> None:
        self.pauses = [Histogram() for _ in range(3)]
        """By generation, ns."""
        self.longest_ns = 0
        """Since whoever reads it last set it to 0."""
        self._clock = clock
        self._begun_ns = 0

    @property
    def count(self) -> int:
        return sum(each.count for each in self.pauses)

    @property
    def total_ns(self) -> int:
        return sum(each.total for each in self.pauses)

    def start(self) -> None:
        gc.callbacks.append(self._heard)

    def stop(self) -> None:
        """Idempotent."""
        if self._heard in gc.callbacks:
            gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begun_ns = self._clock()
        elif self._begun_ns:
            pause_ns = self._clock() - self._begun_ns
            self.pauses[info["generation"]].add(pause_ns)
            self.longest_ns = max(self.longest_ns, pause_ns)
            self._begun_ns = 0


class Vitals:
    """All of it. start() and stop() on the loop that is measured."""

    def __init__(self, clock: Clock) -> None:
        self.loop = LoopLag(clock)
        self.gc = GcPauses(clock)

    def start(self) -> None:
        self.loop.start()
        self.gc.start()

    def stop(self) -> None:
        """Idempotent."""
        self.loop.stop()
        self.gc.stop()

    @staticmethod
    def thread_cpu_ns() -> dict[str, int]:
        """CPU time since start by thread: `loop` (the caller's) and those of THREADS that are there."""
        return thread_cpu_ns(THREADS, "loop")

    @staticmethod
    def run_delay_ns() -> int:
        """How long the loop's thread (the caller's) has waited for a CPU."""
        return run_delay_ns()

    @staticmethod
    def process_cpu_ns() -> int:
        return time.process_time_ns()

    @staticmethod
    def rss_bytes() -> int:
        return rss_bytes()


def num_cpus() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
