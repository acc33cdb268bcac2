"""The tensors behind the block ids that the scheduler hands out."""

import structlog
import torch

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import KvLayout, LayerKv
from pipeline.gpu.kv.dtype import KvDtype
from pipeline.gpu.memory.pages import zeros


def new_kv_cache(
    architecture: Architecture,
    layout: KvLayout,
    num_blocks: int,
    block_size: int,
    device: torch.device,
) -> list[LayerKv]:
    """One zeroed (k, v) pair a layer. Zeroed, since a masked position still takes part with weight 0."""
    shape, dtype = layout.kv_format(num_blocks, block_size, architecture.num_kv_heads, architecture.head_dim)
    return [
        LayerKv(zeros(shape, dtype, device), zeros(shape, dtype, device))
        for _ in range(architecture.num_layers)
    ]


def log_size(num_blocks: int, block_size: int, bytes_a_token: int, kv_dtype: KvDtype) -> None:
    """What the cache takes, and how much it holds."""
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    num_tokens = num_blocks * block_size
    log.info(
        "keys and values",
        kv_dtype=kv_dtype,
        bytes_a_token=bytes_a_token,
        blocks=num_blocks,
        tokens=num_tokens,
        mib=round(num_tokens * bytes_a_token / 2**20),
    )
