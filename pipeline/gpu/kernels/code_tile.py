"""Tiles of a quantised cache, read a tile ahead; no kernel of its own.

Codes, an element a byte or two, wait in registers in the loop's own variables until their tile is due, and
are widened once for the whole program, then shared. Were they loaded where they are needed, Triton would let
each warp of an A100 widen all of them for itself. Of a cache that is not quantised all of these are 0, as
something that a loop can carry.
"""

import triton
import triton.language as tl

from pipeline.gpu.kernels.stored_tile import SCALE_GROUP, load_token_scales
from pipeline.gpu.kernels.widen import widen_e4m3, widen_int8, widen_nibble


@triton.jit
def load_codes(
    stored, blocks, entries, is_read, KV: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """[entries, bytes of WIDTH elements] uint8; arguments as stored_tile.load_tile."""
    if KV == "bf16" or KV == "fp32":
        return 0
    else:
        PER_BYTE: tl.constexpr = 2 if KV == "int4" else 1
        NUM_SCALES: tl.constexpr = (D + SCALE_GROUP - 1) // SCALE_GROUP if KV == "int4" else 1
        SIZE: tl.constexpr = D // PER_BYTE
        column = tl.arange(0, WIDTH // PER_BYTE)
        at = blocks * (BLOCK_SIZE * (SIZE + 2 * NUM_SCALES)) + (entries % BLOCK_SIZE) * SIZE
        mask = is_read[:, None] if D == WIDTH else is_read[:, None] & (column < SIZE)[None, :]
        return tl.load(stored + at[:, None] + column[None, :], mask=mask, other=0)


@triton.jit
def load_scales(
    scales, blocks, entries, is_read, KV: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """fp32: [entries] of int8 and fp8, [entries, groups] of int4; 0 where nothing is read."""
    if KV == "int8" or KV == "fp8":
        return load_token_scales(scales, blocks, entries, is_read, D, BLOCK_SIZE)
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
def dequantised(codes, scales, like, KV: tl.constexpr, WIDTH: tl.constexpr):
    """[entries, WIDTH] of like's dtype, rounded to it as in reference.attention."""
    if KV == "int8":
        return widen_int8(codes).to(like.dtype) * scales.to(like.dtype)[:, None]
    elif KV == "fp8":
        return widen_e4m3(codes).to(like.dtype) * scales.to(like.dtype)[:, None]
    else:
        pairs = codes.to(tl.int32)
        nibbles = tl.interleave(widen_nibble(pairs & 15), widen_nibble(pairs >> 4)) - 136.0
        groups = nibbles.reshape(codes.shape[0], WIDTH // SCALE_GROUP, SCALE_GROUP) * scales[:, :, None]
        return groups.reshape(codes.shape[0], WIDTH).to(like.dtype)
