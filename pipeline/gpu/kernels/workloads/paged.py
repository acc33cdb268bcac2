"""Paged caches with random contents, and what a read of them must give, in plain torch."""

import torch
from torch import Tensor

from pipeline.gpu.api import LayerKv, StepInputs
from pipeline.gpu.kernels.cache import Cache, kv_format
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kv.dtype import SCALE_BYTES, code_bytes, is_quantised, num_scales
from pipeline.gpu.reference.quantise import dequantise, quantise

BLOCKS_AT_ONCE = 1024


def stored_row_bytes(shape: ModelShape) -> int:
    """Of one token's key, or value, in one head."""
    scales = SCALE_BYTES * num_scales(shape.head_dim, shape.kv_dtype)
    return code_bytes(shape.head_dim, shape.kv_dtype) + scales


def new_cache(shape: ModelShape, num_blocks: int, device: torch.device) -> Cache:
    """Zeros."""
    sizes = num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim
    layout = kv_format(*sizes, shape.kv_dtype)
    k, v = (torch.zeros(layout.shape, dtype=layout.dtype, device=device) for _ in range(2))
    return Cache(LayerKv(k, v), shape.kv_dtype, shape.block_size, shape.head_dim)


def filled_cache(shape: ModelShape, num_blocks: int, device: torch.device) -> Cache:
    """Of a normal distribution."""
    cache = new_cache(shape, num_blocks, device)
    for side in cache.kv:
        for first in range(0, num_blocks, BLOCKS_AT_ONCE):
            _fill(cache, side[first : first + BLOCKS_AT_ONCE])
    return cache


def _fill(cache: Cache, blocks: Tensor) -> None:
    size = (len(blocks), cache.num_kv_heads, cache.block_size, cache.head_dim)
    values = torch.randn(size, device=blocks.device)
    if not is_quantised(cache.kv_dtype):
        blocks.copy_(values)
        return
    rows, split = quantise(values, cache.kv_dtype), code_bytes(cache.head_dim, cache.kv_dtype)
    codes, scales = _parts(cache, blocks)
    codes.copy_(rows[..., :split])
    scales.copy_(rows[..., split:])


def _parts(cache: Cache, blocks: Tensor) -> tuple[Tensor, Tensor]:
    # views of [blocks, Hkv, bytes]: codes, scales [blocks, Hkv, block_size, bytes of a row]
    split = cache.block_size * code_bytes(cache.head_dim, cache.kv_dtype)
    codes, scales = blocks[..., :split], blocks[..., split:]
    return codes.unflatten(-1, (cache.block_size, -1)), scales.unflatten(-1, (cache.block_size, -1))


def read_slots(cache: Cache, side: Tensor, slots: Tensor) -> Tensor:
    """Keys, or values, of slots [n]: [n, Hkv, D] fp32."""
    blocks, offsets = slots // cache.block_size, slots % cache.block_size
    if not is_quantised(cache.kv_dtype):
        return side[blocks, :, offsets].float()
    codes, scales = _parts(cache, side)
    rows = torch.cat((codes[blocks, :, offsets], scales[blocks, :, offsets]), -1)
    return dequantise(rows, cache.head_dim, cache.kv_dtype)


def read_row(cache: Cache, side: Tensor, inputs: StepInputs, row: int, context: int) -> Tensor:
    """A row's keys, or values: [Hkv, context, D] fp32."""
    entries = torch.arange(context, device=side.device)
    table = inputs.block_tables[row].long()
    slots = table[entries // cache.block_size] * cache.block_size + entries % cache.block_size
    return read_slots(cache, side, slots).transpose(0, 1)


def step_inputs(
    num_rows: int, num_queries: int, context: int, block_size: int, device: torch.device
) -> StepInputs:
    """Rows with so many queries each, the last of their context, over blocks in random order."""
    num_columns = -(-context // block_size)
    ids = torch.randperm(num_rows * num_columns, device=device).view(num_rows, num_columns)
    entries = torch.arange(context - num_queries, context, device=device)
    slots = ids[:, entries // block_size] * block_size + entries % block_size
    num_tokens = num_rows * num_queries
    return StepInputs(
        token_ids=torch.zeros(num_tokens, dtype=torch.int64, device=device),
        positions=entries.repeat(num_rows),
        slot_mapping=slots.flatten(),
        query_start=torch.arange(0, num_tokens + 1, num_queries, dtype=torch.int32, device=device),
        context_lens=torch.full((num_rows,), context, dtype=torch.int32, device=device),
        block_tables=ids.int(),
        logits_rows=torch.arange(num_queries - 1, num_tokens, num_queries, device=device),
        max_queries=num_queries,
    )
