"""The built-in sampling op in one C++ call: torch takes longer over 64 rows than the model does."""

import ctypes

import torch
from torch import Tensor

from pipeline.gpu.host import library as abi
from pipeline.gpu.sampling import SamplingOp, SamplingRows


class HostSampler(SamplingOp):
    """SamplingOp with the same choices, up to the rounding of sums. No class to derive from: its filter is in
    C++, and does not ask is_filtered and num_kept.
    """

    def __init__(self, library: abi.HostLibrary, num_threads: int) -> None:
        super().__init__()
        self._library, self._num_threads = library, num_threads

    def choose(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        num_rows, vocab_size = logits.shape
        if logits.dtype != torch.float32 or logits.stride(1) != 1:
            return super().choose(logits, rows)
        token_ids = torch.empty(num_rows, dtype=torch.int64)
        struct = abi.SamplingRows(
            logits=logits.data_ptr(),
            stride=logits.stride(0),
            vocab=vocab_size,
            num_rows=num_rows,
            temperature=rows.temperature.data_ptr(),
            top_k=rows.top_k.data_ptr(),
            top_p=rows.top_p.data_ptr(),
            seed=rows.seed.data_ptr(),
            position=rows.position.data_ptr(),
        )
        self._library.sample(ctypes.byref(struct), token_ids.data_ptr(), min(self._num_threads, num_rows))
        return token_ids
