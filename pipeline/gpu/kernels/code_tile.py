"""Tiles of a quantised cache, read a tile ahead; no kernel of its own.

Codes, an element a byte or two, wait in registers in the loop's own variables until their tile is due, and
are widened once for the whole program, then shared. Were they loaded where they are needed, Triton would let
each warp of an A100 widen all of them for itself. Of a cache that is not quantised all of these are 0, as
something that a loop can carry.
"""

import triton
import triton.language as tl

from pipeline.gpu.kernels.widen import widen_e4m3, widen_int8, widen_nibbles
from pipeline.gpu.kv.dtype import GROUP

SCALE_GROUP = tl.constexpr(GROUP)


@triton.jit
def load_codes(
    stored, blocks, entries, is_read, KV: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """[entries, words of WIDTH elements] int32, the first code in the lowest bits; arguments as
    stored_tile.load_tile."""
    if KV == "bf16" or KV == "fp32":
        return 0
    else:
        PER_WORD: tl.constexpr = 8 if KV == "int4" else 4
        NUM_SCALES: tl.constexpr = (D + SCALE_GROUP - 1) // SCALE_GROUP if KV == "int4" else 1
        SIZE: tl.constexpr = D // PER_WORD
        word = tl.arange(0, WIDTH // PER_WORD)
        at = blocks * (BLOCK_SIZE * SIZE + BLOCK_SIZE * NUM_SCALES // 2) + (entries % BLOCK_SIZE) * SIZE
        mask = is_read[:, None] if D == WIDTH else is_read[:, None] & (word < SIZE)[None, :]
        words = stored.to(tl.pointer_type(tl.int32))
        return tl.load(words + at[:, None] + word[None, :], mask=mask, other=0)


@triton.jit
def load_scales(
    scales, blocks, entries, is_read, KV: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """fp32: [entries] of int8 and fp8, [entries, groups] of int4; 0 where nothing is read.

    Args:
        scales: the same memory as the codes, counted in bf16 (cache.scales_of).
    """
    if KV == "int8" or KV == "fp8":
        at = blocks * (BLOCK_SIZE * (D + 2) // 2) + BLOCK_SIZE * D // 2 + entries % BLOCK_SIZE
        return tl.load(scales + at, mask=is_read, other=0.0).to(tl.float32)
    elif KV == "int4":
        NUM_SCALES: tl.constexpr = (D + SCALE_GROUP - 1) // SCALE_GROUP
        group = tl.arange(0, WIDTH // SCALE_GROUP)
        at = blocks * (BLOCK_SIZE * (D // 4 + NUM_SCALES)) + BLOCK_SIZE * (D // 4)
        at += (entries % BLOCK_SIZE) * NUM_SCALES
        mask = is_read[:, None] & (group < NUM_SCALES)[None, :]
        return tl.load(scales + at[:, None] + group[None, :], mask=mask, other=0.0).to(tl.float32)
    else:
        return 0


@triton.jit
def widened(codes, scales, like, KV: tl.constexpr, WIDTH: tl.constexpr):
    """[entries, WIDTH] of like's dtype: the codes of int8 and fp8, exact in bf16, for a token's scale belongs
    to its score or its probability; what int4 stands for, rounded as in reference.attention."""
    if KV == "int4":
        numbers = widen_nibbles(codes).reshape(codes.shape[0], WIDTH // SCALE_GROUP, SCALE_GROUP)
        numbers = numbers.to(like.dtype) * scales.to(like.dtype)[:, :, None]
    elif KV == "int8":
        numbers = widen_int8(codes).to(like.dtype)
    else:
        numbers = widen_e4m3(codes).to(like.dtype)
    return numbers.reshape(codes.shape[0], WIDTH)


@triton.jit
def dequantised(codes, scales, like, KV: tl.constexpr, WIDTH: tl.constexpr):
    """[entries, WIDTH] of like's dtype, rounded to it as in reference.attention."""
    tile = widened(codes, scales, like, KV, WIDTH)
    return tile if KV == "int4" else tile * scales.to(like.dtype)[:, None]
