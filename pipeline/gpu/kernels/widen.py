"""Stored codes as numbers, inside a kernel, exactly: by masks and one addition or product, for conversions
have a fraction of their rate, and GPUs before sm_89 have none of e4m3.

Of a cache, words of four codes or eight, int32 with the first code in the lowest bits, become bf16: two codes
at a time (HADD2, HMUL2), in the way that leaves the fewest instructions on sm_90. Of weights, bytes become
fp32.
"""

import triton
import triton.language as tl


@triton.jit
def widen_int8(words):
    """Two's complement -> [..., 2, 2]: 128 + the low seven bits, less 128, or 256 where the sign is set."""
    even = _halves((words & 0x00FF00FF) | 0x43004300)
    odd = _halves(((words >> 8) & 0x00FF00FF) | 0x43004300)
    codes = tl.join(even, odd).to(tl.int16, bitcast=True)
    return (codes & 0x437F).to(tl.bfloat16, bitcast=True) - (codes & 0x4380).to(tl.bfloat16, bitcast=True)


@triton.jit
def widen_e4m3(words):
    """-> [..., 2, 2]: sign and magnitude where bf16 has them, and the exponent counted from its own zero."""
    even = _halves(((words << 8) & -0x7FFF8000) | ((words << 4) & 0x07F007F0))
    odd = _halves((words & -0x7FFF8000) | ((words >> 4) & 0x07F007F0))
    return tl.join(even, odd) * tl.full([1, 1, 1, 1], 1.329227995784916e36, tl.bfloat16)  # 2^120


@triton.jit
def widen_nibbles(words):
    """0..15 -> [..., 2, 2, 2], each less 8: as the low bits of 128, less 136."""
    even = tl.join(_nibbles(words), _nibbles(words >> 8))
    odd = tl.join(_nibbles(words >> 4), _nibbles(words >> 12))
    return tl.join(even, odd) - tl.full([1, 1, 1, 1, 1], 136.0, tl.bfloat16)


@triton.jit
def _nibbles(words):
    return _halves((words & 0x000F000F) | 0x43004300)


@triton.jit
def _halves(words):
    """bf16 [..., 2], the lower half first."""
    low = words.to(tl.int16).to(tl.bfloat16, bitcast=True)
    return tl.join(low, (words >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True))


@triton.jit
def widen_int8_bytes(codes):
    """uint8 in two's complement -> fp32: 2^23 + 128 + code are the bits of a float."""
    bits = (codes.to(tl.int32) ^ 0x80) | 0x4B000000
    return bits.to(tl.float32, bitcast=True) - 8388736.0


@triton.jit
def widen_nibble(nibbles):
    """int32 of 0..15 -> fp32, 128 more: to be taken off where it costs nothing."""
    return ((nibbles << 16) | 0x43000000).to(tl.float32, bitcast=True)
