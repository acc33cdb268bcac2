"""Randomness without state: a number is a function of (seed, position) alone.

So a row draws the same number whatever its neighbours, its place in the batch, the chunking of its prompt
or a preemption, and two devices agree.
"""

from torch import Tensor

_GAMMA = -7046029254386353131
"""0x9E3779B97F4A7C15, the odd number nearest to 2^64 / golden ratio, as int64."""
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """[R] int64, [R] int64 -> [R] float64, uniform on [0, 1) in steps of 2^-53.

    Two rounds of SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"):
    the mixed seed is the start of a stream, the position a place in it.
    """
    bits = _mix(_mix(seed + _GAMMA) + (position + 1) * _GAMMA)
    return _shift_right(bits, 11).double() * 2.0**-53


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    # logical, of int64 taken as unsigned
    return (z >> bits) & ((1 << (64 - bits)) - 1)
