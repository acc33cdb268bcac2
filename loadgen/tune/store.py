"""Finished cells on disk: each a file named by the digest of what it is the answer to."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import UsageError
from loadgen.result import write
from loadgen.tune.cells import Cell, Value

VERSION = 1
_DIGITS = 16
_ENOUGH = 2
"""Runs that know something of their noise."""


class Repeat(msgspec.Struct, frozen=True):
    """One run of the workload against a cell's server."""

    seed: int
    measures: dict[str, float]
    """By name; see loadgen.tune.chain."""
    client_bound: list[str]
    """Why the generator may have set the numbers; empty if it has not."""
    span_s: float
    """The last request's due time."""
    wall_s: float


class CellResult(msgspec.Struct, frozen=True):
    """What became of one configuration."""

    version: int
    digest: str
    question: dict[str, Any]
    """All that `digest` is made from."""
    variable: str | None
    value: Value | None
    runs: list[Repeat]
    failure: str | None
    """Why there are no runs."""
    took_s: float

    @property
    def evidence(self) -> list[Repeat]:
        """The runs that count: those that were not client-bound, if there are two; else all."""
        clean = [run for run in self.runs if not run.client_bound]
        return clean if len(clean) >= _ENOUGH else self.runs


class Store:
    """The folder of one or several tunings.

    Args:
        folder: made if it is not there.
        common: what all cells share: workload, command, server version, repeats.
    """

    def __init__(self, folder: Path, common: dict[str, Any]) -> None:
        """Raises UsageError if the folder cannot be made."""
        self.folder = folder
        self._common = common
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {folder}: cannot be made: {error.strerror}") from error

    def digest(self, cell: Cell) -> str:
        """Equal for equal configurations, workloads and servers."""
        content = msgspec.json.encode(self._question(cell), order="deterministic")
        return hashlib.sha256(content).hexdigest()[:_DIGITS]

    def path(self, cell: Cell, suffix: str) -> Path:
        """Of a file of this cell: .json, .toml, ..."""
        return self.folder / f"{self.digest(cell)}{suffix}"

    def finished(self, cell: Cell) -> CellResult | None:
        """The cell's result if it is there and whole; a failed one is to be tried again."""
        try:
            found = msgspec.json.decode(self.path(cell, ".json").read_bytes(), type=CellResult)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        is_ours = found.version == VERSION and found.digest == self.digest(cell) and found.failure is None
        return msgspec.structs.replace(found, variable=cell.variable, value=cell.value) if is_ours else None

    def keep(self, cell: Cell, runs: list[Repeat], failure: str | None, took_s: float) -> CellResult:
        """Writes it whole or not at all. Raises UsageError if it cannot be written."""
        result = CellResult(
            VERSION,
            self.digest(cell),
            self._question(cell),
            cell.variable,
            cell.value,
            runs,
            failure,
            took_s,
        )
        write(self.path(cell, ".json"), msgspec.json.format(msgspec.json.encode(result)))
        return result

    def _question(self, cell: Cell) -> dict[str, Any]:
        return {"version": VERSION, "config": cell.config} | self._common
