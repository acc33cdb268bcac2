"""Kernels compiled ahead of time, without a GPU, and what the machine code says of them.

Triton's own ptxas and cuobjdump do it, so that what is read here is what would run. A process that interprets
(TRITON_INTERPRET) cannot compile.
"""

import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pipeline.errors import ConfigError
from pipeline.gpu.kernels.occupancy import MULTIPROCESSORS, WARP, programs_at_once
from pipeline.gpu.kernels.variant import Variant

ARCHS = (80, 90)
"""Compute capability times ten: A100; H100 and H200."""

_CUOBJDUMP = str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump")
_MATRIX = re.compile(r"\b([HIQ]G?MMA)\b")
_SPILL = re.compile(r"\b(STL|LDL)\b")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/", re.MULTILINE)


class Usage(msgspec.Struct, frozen=True):
    """Of one compiled kernel."""

    registers: int
    """A thread, and"""
    stack_bytes: int
    """a thread: what has spilled, or an array that could not be kept in registers."""
    shared_bytes: int
    """A program."""
    num_warps: int
    instructions: int
    spill_instructions: int
    """Loads and stores of the stack."""
    matrix_instructions: int
    """Tensor cores: HMMA, IMMA, QMMA (warps) and HGMMA, IGMMA, QGMMA (warp groups)."""
    matrix_kinds: list[str]
    compile_s: float


def compile_variant(variant: Variant, arch: int) -> Usage:
    """Take 0.2 to 3 seconds, or none if Triton's cache has it. Raises ConfigError, or what Triton raises."""
    if triton.knobs.runtime.interpret:
        raise ConfigError("TRITON_INTERPRET is set: kernels are interpreted in this process, not compiled")
    if arch not in MULTIPROCESSORS:
        raise ConfigError(f"sm_{arch} is not known here; there are {', '.join(map(str, MULTIPROCESSORS))}")
    config = variant.config
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, "enable_fp_fusion": True}
    start = time.perf_counter()
    compiled = triton.compile(_source(variant), target=GPUTarget("cuda", arch, WARP), options=options)
    seconds = time.perf_counter() - start
    code = _disassembled(compiled.asm["cubin"])
    kinds = _MATRIX.findall(code)
    return Usage(
        registers=_number("REG", code),
        stack_bytes=_number("STACK", code),
        shared_bytes=compiled.metadata.shared,
        num_warps=compiled.metadata.num_warps,
        instructions=len(_INSTRUCTION.findall(code)),
        spill_instructions=len(_SPILL.findall(code)),
        matrix_instructions=len(kinds),
        matrix_kinds=sorted(set(kinds)),
        compile_s=round(seconds, 3),
    )


def regressions(variant: Variant, arch: int, usage: Usage) -> list[str]:
    """What does not hold of a compiled variant; nothing: all does."""
    limits = MULTIPROCESSORS[arch]
    max_shared_bytes = min(variant.max_shared_bytes, limits.program_shared_bytes)
    found = []
    if variant.is_hot and (usage.stack_bytes or usage.spill_instructions):
        found.append(f"spills: {usage.stack_bytes} bytes of stack, {usage.spill_instructions} instructions")
    if usage.registers > variant.max_registers:
        found.append(f"{usage.registers} registers, over {variant.max_registers}")
    if usage.shared_bytes > max_shared_bytes:
        found.append(f"{usage.shared_bytes:,} bytes of shared memory, over {max_shared_bytes:,}")
    if variant.has_dot and not usage.matrix_instructions:
        found.append("no tensor-core instruction")
    return found


def occupancy(variant: Variant, arch: int, usage: Usage) -> tuple[int, int]:
    """Programs on a multiprocessor at once: reached, and the fewest that the variant's bounds allow."""
    reached = programs_at_once(arch, usage.num_warps, usage.registers, usage.shared_bytes)
    is_bound = variant.max_shared_bytes < MULTIPROCESSORS[arch].program_shared_bytes
    shared_bytes = variant.max_shared_bytes if is_bound else usage.shared_bytes
    return reached, programs_at_once(arch, usage.num_warps, variant.max_registers, shared_bytes)


def _source(variant: Variant) -> ASTSource:
    names = variant.kernel.arg_names
    types = {name: "constexpr" if name in variant.constants else variant.types[name] for name in names}
    # in order, for the name that Triton's cache gives it goes by their order, and that of a set changes
    attributes = {
        (at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name in variant.aligned
    }
    constants: dict[str, Any] = dict(variant.constants)
    return ASTSource(fn=variant.kernel, signature=types, constexprs=constants, attrs=attributes)


def _disassembled(cubin: bytes) -> str:
    """Resources and machine code, as cuobjdump prints them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [_CUOBJDUMP, "-res-usage", "-sass", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def _number(name: str, code: str) -> int:
    match = re.search(rf"\b{name}:(\d+)", code)
    if match is None:
        raise ValueError(f"cuobjdump does not tell {name}: {code[:500]!r}")
    return int(match[1])
