"""The sampling columns of each slot, in host memory: what a step's rows take from them."""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.gpu.kv.contexts import Ints
from pipeline.messages import Admitted

Columns: TypeAlias = dict[str, npt.NDArray[np.generic]]
"""Fields of gpu.sampling.SamplingRows, [R] each."""


class SamplingSlots:
    """[max_num_seqs] of each column. Who is admitted to a slot replaces what is there."""

    def __init__(self, max_num_seqs: int) -> None:
        self._temperature = np.zeros(max_num_seqs, dtype=np.float32)
        self._top_k = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_p = np.ones(max_num_seqs, dtype=np.float32)
        self._seed = np.zeros(max_num_seqs, dtype=np.int64)

    def admit(self, admitted: Iterable[Admitted]) -> None:
        for each in admitted:
            slot, sampling = each.slot, each.sampling
            self._temperature[slot] = sampling.temperature
            self._top_k[slot] = sampling.top_k
            self._top_p[slot] = sampling.top_p
            self._seed[slot] = _as_int64(sampling.seed)

    def columns(self, slots: Ints, positions: Ints) -> Columns:
        """Of rows in these slots [R], that sample the token after `positions` [R]."""
        return {
            "temperature": self._temperature[slots],
            "top_k": self._top_k[slots],
            "top_p": self._top_p[slots],
            "seed": self._seed[slots],
            "position": positions,
        }


def _as_int64(seed: int) -> int:
    # any Python int to its low 64 bits, as two's complement
    low = seed & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
