"""Contexts: what the slots' sequences have dropped, what their queries see, and which of them are weighed."""

import numpy as np
import numpy.typing as npt

from pipeline.messages import StepPlan

Ints = npt.NDArray[np.int64]
ShortInts = npt.NDArray[np.int32]


class Contexts:
    """Per-slot state, [max_num_seqs], in host memory. Shapes: B rows of a step."""

    def __init__(self, max_num_seqs: int, block_size: int) -> None:
        self._block_size = block_size
        self.num_dropped = np.zeros(max_num_seqs, dtype=np.int64)
        """Tokens."""
        self._sinks = np.zeros(max_num_seqs, dtype=np.int32)
        self._windows = np.zeros(max_num_seqs, dtype=np.int32)
        self.is_weighed = np.zeros(max_num_seqs, dtype=np.bool_)

    def apply(self, plan: StepPlan, tables: ShortInts) -> None:
        """The plan's admissions, then what it drops from `tables`, [max_num_seqs, max_blocks]."""
        for admitted in plan.admitted:
            slot = admitted.slot
            self.num_dropped[slot] = admitted.num_dropped
            self._sinks[slot], self._windows[slot] = admitted.sinks, admitted.window
            self.is_weighed[slot] = admitted.is_weighed
        for slot, column in zip(plan.dropped_slots, plan.dropped_cols, strict=True):
            tables[slot, column:-1] = tables[slot, column + 1 :]
            self.num_dropped[slot] += self._block_size

    def has_masks(self, slots: Ints) -> bool:
        """Whether one of the rows in these slots [B] does not see all of its context."""
        return bool(self._windows[slots].any())

    def masks(self, slots: Ints) -> tuple[ShortInts, ShortInts]:
        """StepInputs.sinks and .windows."""
        return self._sinks[slots], self._windows[slots]

    def weighed_rows(self, slots: Ints) -> Ints:
        """[W] of the B rows."""
        return np.flatnonzero(self.is_weighed[slots])
