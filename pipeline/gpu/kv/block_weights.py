"""What the blocks of sequences that drop the least attended ones weigh so far. Kept on the device, changed in
the order of its steps: so no step waits for the weights of another.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.messages import DropQuestion, StepPlan

Ints = npt.NDArray[np.int64]


class BlockWeights:
    """[max_num_seqs, max_blocks] int64 in units of StepInputs.mass, one for each column of a slot's table.
    Takes no memory until a slot is weighed.
    """

    def __init__(self, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        self._shape, self._device = (max_num_seqs, max_blocks), device
        self._weights: Tensor | None = None
        """With one more column, which is 0."""

    def moves(self, plan: StepPlan, is_weighed: npt.NDArray[np.bool_]) -> tuple[Ints, Ints] | None:
        """For `move`: slots [M] whose columns change with the plan, and sources [M, max_blocks].

        Args:
            is_weighed: by slot, the plan's admissions taken in.
        """
        blank = self._shape[1]
        sources: dict[int, Ints] = {a.slot: np.full(blank, blank) for a in plan.admitted if a.is_weighed}
        for slot, column in zip(plan.dropped_slots, plan.dropped_cols, strict=True):
            if is_weighed[slot]:
                _take_out(sources.setdefault(slot, np.arange(blank)), column, blank)
        if not sources:
            return None
        return np.fromiter(sources, np.int64), np.stack(list(sources.values()))

    def move(self, slots: Tensor, sources: Tensor) -> None:
        """Column k of slots[m] becomes what column sources[m, k] was; column max_blocks is always 0."""
        if self._weights is None:
            num_slots, num_columns = self._shape
            self._weights = torch.zeros(num_slots, num_columns + 1, dtype=torch.int64, device=self._device)
        moved = self._weights.index_select(0, slots).gather(1, sources)
        self._weights[:, :-1].index_copy_(0, slots, moved)

    def add(self, mass: Tensor, rows: Tensor, slots: Tensor) -> None:
        """mass [B, N] of a step, of which rows [W] are those of slots [W]."""
        assert self._weights is not None, "a slot is weighed from its admission on"
        self._weights[:, : mass.shape[1]].index_add_(0, slots, mass.index_select(0, rows))

    def of(self, slots: Tensor, num_columns: int) -> Tensor:
        """As they are now: [Q, num_columns]."""
        assert self._weights is not None, "a slot is weighed from its admission on"
        return self._weights[:, :num_columns].index_select(0, slots)


def least(weights: npt.NDArray[np.int64], questions: Iterable[DropQuestion]) -> list[list[int]]:
    """The answers, ascending; of equals the first. weights [Q, N]: row q of question q's slot."""
    return [_least(row, question) for row, question in zip(weights, questions, strict=True)]


def _least(weights: npt.NDArray[np.int64], question: DropQuestion) -> list[int]:
    order = np.argsort(weights[question.first_col : question.end_col], kind="stable")
    return sorted((question.first_col + order[: question.num_drops]).tolist())


def _take_out(columns: npt.NDArray[Any], column: int, last: int) -> None:
    """Those after it move up; the end becomes `last`."""
    columns[column:-1] = columns[column + 1 :]
    columns[-1] = last
