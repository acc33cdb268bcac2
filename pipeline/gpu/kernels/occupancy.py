"""How many programs run on a multiprocessor at once (CUDA C++ Programming Guide, compute capabilities)."""

from typing import NamedTuple

WARP = 32
REGISTERS = 65_536
"""Of a multiprocessor; a warp takes them in units of"""
REGISTER_UNIT = 256
SHARED_UNIT = 1024
"""Bytes: what the system keeps of shared memory for each program, and the unit it is given in."""
MAX_PROGRAMS = 32


class Multiprocessor(NamedTuple):
    """Of one compute capability."""

    max_warps: int
    shared_bytes: int
    program_shared_bytes: int
    """The most of one program."""
    max_programs: int = MAX_PROGRAMS


MULTIPROCESSORS = {
    80: Multiprocessor(64, 164 * 1024, 163 * 1024),
    86: Multiprocessor(48, 100 * 1024, 99 * 1024, 16),
    89: Multiprocessor(48, 100 * 1024, 99 * 1024, 24),
    90: Multiprocessor(64, 228 * 1024, 227 * 1024),
}
"""By compute capability times ten."""


def programs_at_once(arch: int, num_warps: int, registers: int, shared_bytes: int) -> int:
    """On one multiprocessor; 0: none fits.

    Args:
        registers: of a thread.
        shared_bytes: of a program.
    """
    limits = MULTIPROCESSORS[arch]
    if shared_bytes > limits.program_shared_bytes:
        return 0
    warp_registers = _padded(registers * WARP, REGISTER_UNIT)
    by_registers = REGISTERS // warp_registers // num_warps if registers else limits.max_programs
    by_shared = limits.shared_bytes // (_padded(shared_bytes, SHARED_UNIT) + SHARED_UNIT)
    return min(limits.max_programs, limits.max_warps // num_warps, by_registers, by_shared)


def _padded(count: int, unit: int) -> int:
    return -(-count // unit) * unit
