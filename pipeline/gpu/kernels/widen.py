"""Stored codes as numbers, inside a kernel: integer operations and one addition or product in fp32, for a
conversion of integers has a fraction of their rate, and GPUs before sm_89 have none of e4m3. All exact.
"""

import triton
import triton.language as tl


@triton.jit
def widen_int8(codes):
    """uint8 in two's complement -> fp32: 2^23 + 128 + code are the bits of a float."""
    bits = (codes.to(tl.int32) ^ 0x80) | 0x4B000000
    return bits.to(tl.float32, bitcast=True) - 8388736.0


@triton.jit
def widen_e4m3(codes):
    """uint8 -> fp32: sign and magnitude where fp32 has them, and the exponent counted from its own zero."""
    bits = (codes.to(tl.int8, bitcast=True).to(tl.int32) << 20) & -0x78100000
    return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120


@triton.jit
def widen_nibble(nibbles):
    """int32 of 0..15 -> fp32, 128 more: to be taken off where it costs nothing."""
    return ((nibbles << 16) | 0x43000000).to(tl.float32, bitcast=True)
