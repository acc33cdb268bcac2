"""Writing keys, or values, of one token into a paged cache (kernels.cache) inside a kernel; no kernel of its
own.

The bytes are those of reference.quantise, bit for bit: quotients are rounded correctly (tl.div_rn), codes to
the nearest even by adding a power of two and looking at the bits, and e4m3 is encoded by integers, so that a
GPU without it (before sm_89) does the same.
"""

import triton
import triton.language as tl

from pipeline.gpu.kv.dtype import GROUP, MAX_CODE

SCALE_GROUP = tl.constexpr(GROUP)
MAX_INT8, MAX_FP8, MAX_INT4 = (tl.constexpr(MAX_CODE[kind]) for kind in ("int8", "fp8", "int4"))
ONE_TO_23 = tl.constexpr(1.5 * 2**23)
"""Added to a number under 2^22, leaves it rounded in the low bits, as its two's complement if negative."""


@triton.jit
def store_rows(
    rows, stored, scales, blocks, place, is_kept, KV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Rows [heads, width], 0 from column D on, as entry `place` of their blocks.

    Args:
        stored, scales: as in stored_tile.load_tile.
        blocks: [heads] int64, which [block, head] each row goes to, counted in heads.
        is_kept: [heads]; the other rows are written nowhere.
    """
    if KV == "int4":
        _store_int4(rows, stored, scales, blocks, place, is_kept, D, BLOCK_SIZE)
    else:
        column = tl.arange(0, rows.shape[1])
        mask = is_kept[:, None] & (column < D)[None, :]
        if KV == "bf16" or KV == "fp32":
            at = (blocks * BLOCK_SIZE + place) * D
            tl.store(stored + at[:, None] + column[None, :], rows.to(stored.dtype.element_ty), mask=mask)
        else:
            wide = rows.to(tl.float32)
            scale_bits, scale = _scale(tl.max(tl.abs(wide), 1), MAX_INT8 if KV == "int8" else MAX_FP8)
            quotient = _divide(wide, scale[:, None])
            codes = (quotient + ONE_TO_23).to(tl.int32, bitcast=True) if KV == "int8" else _to_e4m3(quotient)
            block_bytes: tl.constexpr = BLOCK_SIZE * (D + 2)
            at = blocks * block_bytes + place * D
            tl.store(stored + at[:, None] + column[None, :], (codes & 0xFF).to(tl.uint8), mask=mask)
            at = blocks * (block_bytes // 2) + BLOCK_SIZE * D // 2 + place
            tl.store(scales + at, scale_bits, mask=is_kept)


@triton.jit
def _store_int4(rows, stored, scales, blocks, place, is_kept, D: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    heads: tl.constexpr = rows.shape[0]
    width: tl.constexpr = rows.shape[1]
    num_groups: tl.constexpr = width // SCALE_GROUP
    num_scales: tl.constexpr = (D + SCALE_GROUP - 1) // SCALE_GROUP
    block_bytes: tl.constexpr = BLOCK_SIZE * (D // 2 + 2 * num_scales)
    groups = rows.to(tl.float32).reshape(heads, num_groups, SCALE_GROUP)
    scale_bits, scale = _scale(tl.max(tl.abs(groups), 2), MAX_INT4)
    codes = (_divide(groups, scale[:, :, None]) + ONE_TO_23).to(tl.int32, bitcast=True)
    even, odd = tl.split(((codes + 8) & 15).reshape(heads, width // 2, 2))
    column = tl.arange(0, width // 2)
    at = blocks * block_bytes + place * (D // 2)
    mask = is_kept[:, None] & (column < D // 2)[None, :]
    tl.store(stored + at[:, None] + column[None, :], (even | odd << 4).to(tl.uint8), mask=mask)
    group = tl.arange(0, num_groups)
    at = blocks * (block_bytes // 2) + BLOCK_SIZE * (D // 2) // 2 + place * num_scales
    tl.store(
        scales + at[:, None] + group[None, :],
        scale_bits,
        mask=is_kept[:, None] & (group < num_scales)[None, :],
    )


@triton.jit
def _scale(largest, MAX: tl.constexpr):
    # the smallest bf16 no less than largest / MAX: as it is stored, and in fp32
    bits = (tl.div_rn(largest, MAX).to(tl.int32, bitcast=True) + 0xFFFF) >> 16
    return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True), (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def _divide(x, scale):
    return tl.where(scale == 0.0, 0.0, tl.div_rn(x, scale))


@triton.jit
def _to_e4m3(x):
    # |x| <= 448 -> int32; below 2^-6 it has no leading one, and 2^-9 is one step
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    magnitude = tl.abs(x)
    bits = magnitude.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    small = (magnitude + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    return sign | tl.where(magnitude < 0.015625, small, normal)
