"""Reading keys, or values, out of a paged cache (kernels.cache) inside a kernel; no kernel of its own.

What int8 and fp8 give is the code, exact in bf16: a token's scale belongs to its score, or its probability.
What int4 gives has its scales in it, and is rounded to the dtype of the product as in reference.attention.
"""

import triton
import triton.language as tl

from pipeline.gpu.kernels.widen import widen_e4m3, widen_int8, widen_nibble
from pipeline.gpu.kv.dtype import GROUP

SCALE_GROUP = tl.constexpr(GROUP)


@triton.jit
def head_blocks(table, entries, is_read, kv_head, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Which [block, head] of the cache holds each entry: int64, counted in heads; 0 where none is read."""
    ids = tl.load(table + entries // BLOCK_SIZE, mask=is_read, other=0)
    return ids.to(tl.int64) * KV_HEADS + kv_head


@triton.jit
def load_tile(
    stored, scales, blocks, entries, is_read, like, KV: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """[entries, WIDTH] of like's dtype; 0 where nothing is read, and in columns from D on.

    Args:
        stored: of all heads; scales: the same memory counted in bf16 (cache.scales_of), of quantised ones.
        blocks: what head_blocks gives.
    """
    if KV == "int4":
        return _load_int4(stored, scales, blocks, entries, is_read, D, WIDTH, BLOCK_SIZE).to(like.dtype)
    column = tl.arange(0, WIDTH)
    row_stride: tl.constexpr = D
    block_stride: tl.constexpr = BLOCK_SIZE * D + (0 if KV == "bf16" or KV == "fp32" else 2 * BLOCK_SIZE)
    at = blocks * block_stride + (entries % BLOCK_SIZE) * row_stride
    mask = is_read[:, None] if D == WIDTH else is_read[:, None] & (column < D)[None, :]
    tile = tl.load(stored + at[:, None] + column[None, :], mask=mask, other=0)
    if KV == "int8":
        return widen_int8(tile).to(like.dtype)
    if KV == "fp8":
        return widen_e4m3(tile).to(like.dtype)
    return tile.to(like.dtype)


@triton.jit
def load_token_scales(scales, blocks, entries, is_read, D: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """[entries] fp32 of int8 and fp8, by which a token's score, or its probability, is to be multiplied."""
    at = blocks * (BLOCK_SIZE * (D + 2) // 2) + BLOCK_SIZE * D // 2 + entries % BLOCK_SIZE
    return tl.load(scales + at, mask=is_read, other=0.0).to(tl.float32)


@triton.jit
def _load_int4(
    stored, scales, blocks, entries, is_read, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    # [entries, WIDTH] fp32
    num_scales: tl.constexpr = (D + SCALE_GROUP - 1) // SCALE_GROUP
    block_stride: tl.constexpr = BLOCK_SIZE * (D // 2 + 2 * num_scales)
    place = entries % BLOCK_SIZE
    column = tl.arange(0, WIDTH // 2)
    at = blocks * block_stride + place * (D // 2)
    mask = is_read[:, None] if D == WIDTH else is_read[:, None] & (column < D // 2)[None, :]
    pairs = tl.load(stored + at[:, None] + column[None, :], mask=mask, other=0x88).to(tl.int32)
    codes = tl.interleave(widen_nibble(pairs & 15), widen_nibble(pairs >> 4)) - 136.0
    group = tl.arange(0, WIDTH // SCALE_GROUP)
    at = blocks * (block_stride // 2) + BLOCK_SIZE * (D // 4) + place * num_scales
    mask = is_read[:, None] & (group < num_scales)[None, :]
    scale = tl.load(scales + at[:, None] + group[None, :], mask=mask, other=0.0).to(tl.float32)
    groups = codes.reshape(codes.shape[0], WIDTH // SCALE_GROUP, SCALE_GROUP)
    return (groups * scale[:, :, None]).reshape(codes.shape[0], WIDTH)
