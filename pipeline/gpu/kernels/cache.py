"""How the Triton kernels lay a layer's keys, or its values, out in memory.

Not quantised: [num_blocks, Hkv, block_size, D], so a block of one head is contiguous.
Quantised: [num_blocks, Hkv, block bytes] uint8; of a block of one head, first the codes of its tokens,
[block_size, code_bytes(D)], then their scales, [block_size, num_scales(D)] bf16. Codes and scales are as in
reference.quantise, apart so that rows of codes are aligned.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.gpu.api import KvFormat, LayerKv
from pipeline.gpu.kv.dtype import SCALE_BYTES, KvDtype, code_bytes, is_quantised, num_scales

KV_BLOCK_DIM = 0


class Cache(NamedTuple):
    """One layer's keys and values, and what its bytes mean."""

    kv: LayerKv
    kv_dtype: KvDtype
    block_size: int
    head_dim: int

    @property
    def num_kv_heads(self) -> int:
        return self.kv.k.shape[1]


def kv_format(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, kv_dtype: KvDtype
) -> KvFormat:
    """Implements api.KvLayout.kv_format."""
    if not is_quantised(kv_dtype):
        dtype = torch.float32 if kv_dtype == "fp32" else torch.bfloat16
        return KvFormat((num_blocks, num_kv_heads, block_size, head_dim), dtype)
    scale_bytes = SCALE_BYTES * num_scales(head_dim, kv_dtype)
    block_bytes = block_size * (code_bytes(head_dim, kv_dtype) + scale_bytes)
    return KvFormat((num_blocks, num_kv_heads, block_bytes), torch.uint8)


def scales_of(stored: Tensor) -> Tensor:
    """The same memory counted in bf16: [num_blocks, Hkv, block bytes / 2]; a block's scales begin at
    block_size * code_bytes(D) / 2."""
    return stored.view(torch.bfloat16)
