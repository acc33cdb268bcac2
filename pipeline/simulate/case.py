"""Case and Scenario: what is run to show that a claim holds, and what is then said."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.simulate.cells import Cell
from pipeline.simulate.figures import Figures
from pipeline.simulate.target import Target
from pipeline.simulate.workload import Workload

PLAIN: dict[str, object] = {"max_wait_ms": 1e9, "itl_stretch": 0.0}
"""Nobody is dropped, so that all cases answer the same requests; a case's own option limits prompts."""
MAX_TOKENS = 1024
"""What clients ask for at most: a policy must not know the answer's length from that."""


class Case(NamedTuple):
    cell: Cell
    workload: Workload
    target: Target


class Scenario(NamedTuple):
    about: str
    cases: Callable[[Workload, Target, int], list[Case]]
    """Of a workload, a target and a seed."""
    verdict: Callable[[Sequence[Case], Sequence[Figures]], list[str]]
    """Sentences about the cases' figures."""


def case_of(name: str, options: dict[str, object], workload: Workload, target: Target) -> Case:
    return Case(Cell(name, PLAIN | options, 1), workload, target)
