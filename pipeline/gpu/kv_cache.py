"""The tensors behind the block ids that the scheduler hands out."""

import torch

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import KvLayout, LayerKv
from pipeline.gpu.memory import zeros


def block_bytes(architecture: Architecture, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block: keys and values of block_size tokens in all layers."""
    per_token = architecture.num_layers * 2 * architecture.num_kv_heads * architecture.head_dim
    return block_size * per_token * dtype.itemsize


def new_kv_cache(
    architecture: Architecture,
    layout: KvLayout,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[LayerKv]:
    """One zeroed (k, v) pair a layer. Zeroed, since a masked position still takes part with weight 0."""
    shape = layout.kv_shape(num_blocks, block_size, architecture.num_kv_heads, architecture.head_dim)
    return [
        LayerKv(zeros(shape, dtype, device), zeros(shape, dtype, device))
        for _ in range(architecture.num_layers)
    ]
