"""Embeddings: what the final hidden states of a slot's tokens come to, over all the steps that compute them.

They are added up as whole numbers of 2**-28: such a sum is the same in any order, so an embedding depends
neither on how its prompt is cut into chunks nor on who is in the same steps (docs/decisions/0002). The last
token's state alone is a sum of one. Length 1 makes the mean of a sum.

Shapes: B rows of a step, H tokens whose states count, P rows that yield an embedding, C hidden size.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.gpu.step_rows import Ints, StepRows
from pipeline.messages import Admitted, Pooling

UNITS = 2.0**28
"""In 1. A state's rounding, 2e-9, is far below that of bf16 and fp32."""
MOST = 2.0**16
"""Larger states are taken for faults, so that the sum of 2**19 tokens fits an int64."""
AT_ONCE = 512
"""Tokens that are made whole numbers at a time, for the memory that it takes."""
NONE, LAST, MEAN = 0, 1, 2
_NOBODY = np.zeros(0, dtype=np.int64)
_KINDS: dict[Pooling, int] = {"": NONE, "last": LAST, "mean": MEAN}


class PooledTokens(NamedTuple):
    """What a step adds to the sums, in host memory."""

    tokens: Ints
    """[H] of the step's tokens, rising, and"""
    slots: Ints
    """[H] whose they are."""
    done: Ints
    """[P] slots whose sums are complete with it, in the order of the plan's pooled rows."""


class PooledStep(NamedTuple):
    """The same on the device."""

    slots: Tensor
    done: Tensor
    cleared: Tensor | None
    """Slots whose sums begin with this step."""


class Pools:
    """Per-slot state, [max_num_seqs]. Takes memory and time only from the first embedding on."""

    def __init__(self, max_num_seqs: int, hidden_size: int, device: torch.device) -> None:
        self._shape = (max_num_seqs, hidden_size + 1)
        self._device = device
        self._kinds = np.zeros(max_num_seqs, dtype=np.int8)
        self._is_used = False
        self._sums: Tensor | None = None
        """The last column counts tokens whose states were no numbers."""

    def admit(self, admitted: Sequence[Admitted]) -> Ints:
        """Who gets a slot replaces what was there. The slots whose sums are to be cleared."""
        cleared = [each.slot for each in admitted if each.pooling]
        if not (cleared or self._is_used):
            return _NOBODY
        self._is_used = True
        for each in admitted:
            self._kinds[each.slot] = _KINDS[each.pooling]
        return np.array(cleared, dtype=np.int64)

    def tokens(self, rows: StepRows, pooled: list[int]) -> PooledTokens | None:
        """None: no row of the step is of an embedding, or there has never been one."""
        if not self._is_used:
            return None
        kinds = self._kinds[rows.slots]
        if not kinds.any():
            return None
        counts = np.repeat(kinds == MEAN, np.diff(rows.ends, prepend=0))
        done = np.array(pooled, dtype=np.int64)
        counts[rows.ends[done] - 1] = True
        tokens = np.flatnonzero(counts)
        return PooledTokens(tokens, rows.token_slots[tokens], rows.slots[done])

    def add(self, step: PooledStep, states: Tensor) -> Tensor:
        """states [H, C] fp32, of the step's tokens -> [P, C] fp32, of length 1: embeddings that are done."""
        if self._sums is None:
            self._sums = torch.zeros(self._shape, dtype=torch.int64, device=self._device)
        if step.cleared is not None:
            self._sums.index_fill_(0, step.cleared, 0)
        for slots, part in zip(torch.split(step.slots, AT_ONCE), torch.split(states, AT_ONCE), strict=True):
            self._sums.index_add_(0, slots, _whole(part))
        return _of_length_1(self._sums.index_select(0, step.done))


def _whole(states: Tensor) -> Tensor:
    """[N, C] -> [N, C + 1] int64. One that is no number, or beyond MOST, counts in the last column only."""
    is_sound = (states.abs() < MOST).all(1, keepdim=True)
    units = torch.where(is_sound, states * UNITS, 0.0).round().to(torch.int64)
    return torch.cat((units, (~is_sound).to(torch.int64)), 1)


def _of_length_1(sums: Tensor) -> Tensor:
    vectors = torch.nn.functional.normalize(sums[:, :-1].to(torch.float64), dim=1)
    return torch.where(sums[:, -1:] == 0, vectors, torch.nan).to(torch.float32)
