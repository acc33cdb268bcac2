"""Seeing: what it costs a server to see itself, measured in one process by turning it off and on.

Two runs of a bench differ by more than is to be measured, so one run does both, in turns.
"""

import asyncio
import time
from typing import Any

from pipeline.assemble import Pipeline
from pipeline.messages import StepPlan
from pipeline.runtime.histogram import Histogram

TURN_S = 0.25
WARM_TURNS = 20


class Seeing:
    """Trace, journal (with all that listens to it) and histograms, off in every second turn.

    For a process of the bench alone: histograms are blinded as a class. The sampler goes on: 30 us a second.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._journal = pipeline.telemetry.journal
        self._request, self._step = self._journal.request, self._journal.step
        self._add = Histogram.add
        self._turn = 0
        self._num_rows = 0
        self._mark = (0.0, 0)
        self._spent = {True: (0.0, 0), False: (0.0, 0)}
        """CPU seconds and rows, by whether it saw."""

    def start(self) -> None:
        """Take turns from now on, on the running loop."""
        self._mark = (time.process_time(), self._num_rows)
        asyncio.get_running_loop().call_later(TURN_S, self._next)

    def count(self, plan: StepPlan) -> None:
        """For the runner: the step has so many rows."""
        self._num_rows += len(plan.slots)

    def report(self) -> str:
        (seen_s, num_seen), (blind_s, num_blind) = self._spent[True], self._spent[False]
        if not (num_seen and num_blind):
            return "seeing: the run was too short"
        seen_us, blind_us = seen_s / num_seen * 1e6, blind_s / num_blind * 1e6
        return (
            f"seeing: {seen_us:.3f} us CPU a token with trace, journal and metrics, {blind_us:.3f} without: "
            f"{seen_us / blind_us - 1:+.1%} ({self._turn - WARM_TURNS} turns of {TURN_S:g} s)"
        )

    def _next(self) -> None:
        sees = self._turn % 2 == 0
        cpu_s, num_rows = time.process_time(), self._num_rows
        if self._turn >= WARM_TURNS:
            spent_s, num_spent = self._spent[sees]
            self._spent[sees] = (spent_s + cpu_s - self._mark[0], num_spent + num_rows - self._mark[1])
        self._turn += 1
        self._set(sees=not sees)
        self.start()

    def _set(self, *, sees: bool) -> None:
        self._pipeline.trace.enabled = sees
        journal: Any = self._journal
        journal.request, journal.step = (self._request, self._step) if sees else (_ignore, _ignore)
        histogram: Any = Histogram
        histogram.add = self._add if sees else _ignore


def _ignore(*_: object) -> None:
    return None
