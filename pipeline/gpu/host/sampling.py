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

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        rules = rows.rules
        if rules is None or rules.mask is None or not rules.has_mask_alone or not _is_readable(logits):
            return super().__call__(logits, rows)
        mask = rules.mask
        if rules.others.shape[0]:
            mask = torch.full((logits.shape[0], mask.shape[1]), -1, dtype=torch.int32)
            mask[rules.rows] = rules.mask
        return self._choose(logits, rows, mask)

    def choose(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        if not _is_readable(logits):
            return super().choose(logits, rows)
        return self._choose(logits, rows, None)

    def _choose(self, logits: Tensor, rows: SamplingRows, mask: Tensor | None) -> Tensor:
        num_rows, vocab_size = logits.shape
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
            mask=None if mask is None else mask.data_ptr(),
        )
        self._library.sample(ctypes.byref(struct), token_ids.data_ptr(), min(self._num_threads, num_rows))
        return token_ids


def _is_readable(logits: Tensor) -> bool:
    return logits.dtype == torch.float32 and logits.stride(1) == 1
