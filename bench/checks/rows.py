"""What a part of the check finds. Imports no torch."""

from collections.abc import Mapping

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One line of the table."""

    part: str
    name: str
    result: str
    """For people."""
    ok: bool = True
    """Right, and no worse than its target, where it has one."""
    target: str = ""
    values: dict[str, float] = {}
    """For programs."""

    @property
    def line(self) -> str:
        target = f"  (target {self.target})" if self.target else ""
        return f"{'ok  ' if self.ok else 'FAIL'}  {self.part:<12} {self.name:<46} {self.result}{target}"


class Rates(msgspec.Struct, frozen=True):
    """Measured on this machine: the floors that times are held against."""

    bytes_per_s: float
    flops_per_s: float
    """bf16 matrix products."""

    def floor_ms(self, num_bytes: int, num_flops: int) -> float:
        """What a launch takes at least."""
        return 1e3 * max(num_bytes / self.bytes_per_s, num_flops / self.flops_per_s)


def failed(part: str, error: str) -> Row:
    """A part that did not run to its end."""
    return Row(part, "did not run to its end", error, ok=False)


def as_json(machine: Mapping[str, str], rows: list[Row]) -> bytes:
    return msgspec.json.format(msgspec.json.encode({"machine": dict(machine), "rows": rows})) + b"\n"
