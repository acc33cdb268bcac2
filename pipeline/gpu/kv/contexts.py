"""Contexts: what the slots' sequences have dropped, what their queries see, and what their blocks weigh."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.messages import DropQuestion, StepPlan

Ints = npt.NDArray[np.int64]


class Contexts:
    """Per-slot state, [max_num_seqs, ...], in host memory. Weights take none until a slot has them.

    Shapes: B rows of a step, N columns of their tables.
    """

    def __init__(self, max_num_seqs: int, max_blocks: int, block_size: int) -> None:
        self._shape = (max_num_seqs, max_blocks)
        self._block_size = block_size
        self._num_dropped = np.zeros(max_num_seqs, dtype=np.int64)
        self._sinks = np.zeros(max_num_seqs, dtype=np.int32)
        self._windows = np.zeros(max_num_seqs, dtype=np.int32)
        self._is_weighed = np.zeros(max_num_seqs, dtype=np.bool_)
        self._mass = np.zeros((0, 0), dtype=np.int64)
        """[max_num_seqs, max_blocks], of the tables' columns."""

    def apply(self, plan: StepPlan, tables: npt.NDArray[np.int32]) -> None:
        """The plan's admissions, then what it drops from `tables`, [max_num_seqs, max_blocks]."""
        for admitted in plan.admitted:
            slot = admitted.slot
            self._num_dropped[slot] = admitted.num_dropped
            self._sinks[slot], self._windows[slot] = admitted.sinks, admitted.window
            self._is_weighed[slot] = admitted.is_weighed
            if admitted.is_weighed:
                self._start_weighing(slot)
        for slot, column in zip(plan.dropped_slots, plan.dropped_cols, strict=True):
            _take_out(tables[slot], column)
            self._num_dropped[slot] += self._block_size
            if self._is_weighed[slot]:
                _take_out(self._mass[slot], column)
                self._mass[slot, -1] = 0

    def num_dropped(self, slots: Ints) -> Ints:
        """[B], tokens."""
        return self._num_dropped[slots]

    def masks(self, slots: Ints, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """StepInputs.sinks and .windows."""
        windows = self._windows[slots]
        if not windows.any():
            return None, None
        sinks = torch.from_numpy(self._sinks[slots]).to(device)
        return sinks, torch.from_numpy(windows).to(device)

    def new_mass(self, slots: Ints, num_columns: int, device: torch.device) -> Tensor | None:
        """StepInputs.mass, of this step alone."""
        if not self._is_weighed[slots].any():
            return None
        return torch.zeros(len(slots), num_columns, dtype=torch.int64, device=device)

    def weigh(self, plan: StepPlan, mass: Tensor | None) -> list[list[int]]:
        """Add up what the step's rows attended to; the answers to the plan's questions."""
        if mass is None:
            return []
        slots = np.array(plan.slots)
        rows = np.flatnonzero(self._is_weighed[slots])
        self._mass[slots[rows], : mass.shape[1]] += mass.cpu().numpy()[rows]
        return [self._least(int(slots[each.row]), each) for each in plan.questions]

    def _least(self, slot: int, question: DropQuestion) -> list[int]:
        """Of equals the first."""
        mass = self._mass[slot, question.first_col : question.end_col]
        least = np.argsort(mass, kind="stable")[: question.num_drops]
        return sorted((question.first_col + least).tolist())

    def _start_weighing(self, slot: int) -> None:
        if not self._mass.size:
            self._mass = np.zeros(self._shape, dtype=np.int64)
        self._mass[slot] = 0


def _take_out(columns: npt.NDArray[np.generic], column: int) -> None:
    columns[column:-1] = columns[column + 1 :]
