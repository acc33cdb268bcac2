"""The ahead-of-time check of many variants: compiled by one process or several, and put in a table."""

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

import msgspec

from pipeline.gpu.kernels.aot import Usage, compile_variant, occupancy, regressions
from pipeline.gpu.kernels.catalogue import Entry, entries_of
from pipeline.gpu.kernels.variant import ModelShape

COLUMNS = (
    "kernel", "variant", "arch", "warps", "registers", "shared", "stack", "programs", "matrix", "code", "s"
)  # fmt: skip


class Row(msgspec.Struct, frozen=True):
    """One variant, compiled."""

    kernel: str
    variant: str
    arch: int
    usage: Usage
    programs: int
    """On a multiprocessor at once, and"""
    programs_aim: int
    """as many as max_registers and max_shared_bytes leave room for."""
    regressions: list[str]

    def cells(self) -> tuple[str, ...]:
        """In the order of COLUMNS."""
        usage = self.usage
        matrix = f"{usage.matrix_instructions} {'/'.join(usage.matrix_kinds)}".rstrip()
        return (
            self.kernel,
            self.variant,
            f"sm_{self.arch}",
            str(usage.num_warps),
            str(usage.registers),
            f"{usage.shared_bytes:,}",
            str(usage.stack_bytes),
            f"{self.programs}/{self.programs_aim}",
            matrix,
            f"{usage.instructions:,}",
            f"{usage.compile_s:.1f}",
        )

    def faults(self) -> list[str]:
        """A line for each regression."""
        return [f"{self.kernel} {self.variant} sm_{self.arch}: {each}" for each in self.regressions]


def check(entries: list[Entry], num_processes: int = 1) -> Iterator[Row]:
    """Row by row as they are done, in order. Raises what Triton raises for what does not compile."""
    if num_processes == 1:
        yield from map(check_one, entries)
        return
    named = [(entry.module, entry.shape, entry.arch, entry.number) for entry in entries]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        yield from pool.map(_check_named, named)


def check_one(entry: Entry) -> Row:
    """Compile it."""
    usage = compile_variant(entry.variant, entry.arch)
    return Row(
        entry.module,
        entry.variant.name,
        entry.arch,
        usage,
        *occupancy(entry.variant, entry.arch, usage),
        regressions(entry.variant, entry.arch, usage),
    )


def as_text(rows: Iterable[Row]) -> str:
    """A table for a terminal."""
    lines = [COLUMNS, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_padded(line, widths) for line in lines)


def _padded(cells: tuple[str, ...], widths: list[int]) -> str:
    names = [cell.ljust(width) for cell, width in zip(cells[:3], widths[:3], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[3:], widths[3:], strict=True)]
    return "  ".join(names + numbers)


def as_markdown(rows: Iterable[Row]) -> str:
    """A table without what differs from run to run."""
    lines = [COLUMNS[:-1], ("---",) * (len(COLUMNS) - 1), *(row.cells()[:-1] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _check_named(named: tuple[str, ModelShape, int, int]) -> Row:
    # a kernel cannot be pickled
    module, shape, arch, number = named
    return check_one(entries_of(module, shape, arch)[number])
