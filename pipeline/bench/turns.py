"""Turns: what something costs a server, measured in one process by turning it on and off.

Two runs of a bench differ by more than is to be measured, so one run does both, in turns.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.messages import StepPlan

TURN_S = 0.25
WARM_TURNS = 20


class Mode(NamedTuple):
    """One way in which the server works for a turn."""

    name: str
    begin: Callable[[], None]
    """From whichever was before."""


class Turns:
    """CPU time of the process, all threads, and rows computed, by mode."""

    def __init__(self) -> None:
        self._modes: Sequence[Mode] = ()
        self._turn = 0
        self._num_rows = 0
        self._mark = (0.0, 0)
        self._spent: list[tuple[float, int]] = []
        """CPU seconds and rows of each mode."""

    def count(self, plan: StepPlan) -> None:
        """For the runner: the step has so many rows."""
        self._num_rows += len(plan.slots)

    def take(self, modes: Sequence[Mode]) -> None:
        """One after the other from now on, on the running loop."""
        self._modes, self._spent = modes, [(0.0, 0)] * len(modes)
        self._modes[0].begin()
        self._begin()

    def us_per_row(self) -> list[float]:
        """Of each mode; empty: the run was too short."""
        if not all(num_rows for _, num_rows in self._spent):
            return []
        return [spent_s / num_rows * 1e6 for spent_s, num_rows in self._spent]

    def report(self, what: str) -> str:
        """How each mode compares with the last one."""
        costs = self.us_per_row()
        if not costs:
            return f"{what}: the run was too short"
        *others, last = [f"{cost:.3f} {mode.name}" for cost, mode in zip(costs, self._modes, strict=True)]
        shares = [
            f"{other} ({cost / costs[-1] - 1:+.1%})" for other, cost in zip(others, costs, strict=False)
        ]
        num_turns = self._turn - WARM_TURNS
        return f"{what}: us CPU a token: {', '.join(shares)}, {last}; {num_turns} turns of {TURN_S:g} s"

    def _begin(self) -> None:
        self._mark = (time.process_time(), self._num_rows)
        asyncio.get_running_loop().call_later(TURN_S, self._next)

    def _next(self) -> None:
        index = self._turn % len(self._modes)
        if self._turn >= WARM_TURNS:
            spent_s, num_rows = self._spent[index]
            spent_s += time.process_time() - self._mark[0]
            self._spent[index] = (spent_s, num_rows + self._num_rows - self._mark[1])
        self._turn += 1
        self._modes[self._turn % len(self._modes)].begin()
        self._begin()
