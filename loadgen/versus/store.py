"""Visits on disk, one file for each, so that a comparison goes on where it was interrupted."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import UsageError
from loadgen.machine import Machine, this_machine
from loadgen.result import write

VERSION = 1
_DIGITS = 16


class Run(msgspec.Struct, frozen=True):
    """One case, once."""

    case: str
    measures: dict[str, float]
    """By name."""
    foreign_cores: float | None
    """What other processes used meanwhile; None where the system does not tell."""
    is_disturbed: bool
    """They used so much that the figures are worth little, and no other try was better."""
    num_off: int
    """Answers of another length than asked."""


class Visit(msgspec.Struct, frozen=True):
    """One start of one server."""

    server: str
    round: int
    ready_s: float | None
    """From the start of its process to the first 200 of its `ready_path`."""
    peak_rss_bytes: int | None
    """Its processes' peaks, added up, at the end; None where there is no /proc."""
    runs: list[Run]
    failure: str | None
    """Why there are no runs."""


class _Kept(msgspec.Struct, frozen=True):
    version: int
    digest: str
    visit: Visit


class Comparison(msgspec.Struct, frozen=True):
    """result.json."""

    version: int
    question: dict[str, Any]
    """Servers, workload and options."""
    machine: Machine
    visits: list[Visit]


class Store:
    """The folder of one comparison.

    Args:
        folder: made if it is not there.
        questions: what a server's visits answer, by server; a visit that answered another is not taken.
    """

    def __init__(self, folder: Path, questions: dict[str, dict[str, Any]]) -> None:
        """Raises UsageError if the folder cannot be made."""
        self.folder = folder
        self._questions = questions
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {folder}: cannot be made: {error.strerror}") from error

    def log(self, server: str, number: int) -> Path:
        """Of what the server writes."""
        return self.folder / f"round-{number}.{server}.log"

    def finished(self, server: str, number: int) -> Visit | None:
        """That visit if it is there and whole; a failed one is to be tried again."""
        try:
            kept = msgspec.json.decode(self._path(server, number).read_bytes(), type=_Kept)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        is_ours = kept.version == VERSION and kept.digest == self._digest(server)
        return kept.visit if is_ours and kept.visit.failure is None else None

    def keep(self, visit: Visit) -> None:
        """Writes it whole or not at all. Raises UsageError if it cannot be written."""
        kept = _Kept(VERSION, self._digest(visit.server), visit)
        write(self._path(visit.server, visit.round), msgspec.json.encode(kept))

    def conclude(self, visits: list[Visit], report: str) -> None:
        """Writes result.json and report.md."""
        result = Comparison(VERSION, self._questions, this_machine(), visits)
        write(self.folder / "result.json", msgspec.json.format(msgspec.json.encode(result)))
        write(self.folder / "report.md", report.encode())

    def _path(self, server: str, number: int) -> Path:
        return self.folder / f"round-{number}.{server}.json"

    def _digest(self, server: str) -> str:
        content = msgspec.json.encode(self._questions[server], order="deterministic")
        return hashlib.sha256(content).hexdigest()[:_DIGITS]
