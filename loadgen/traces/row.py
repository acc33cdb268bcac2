"""What every trace format becomes."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

NS_PER_S = 1_000_000_000


class TraceRow(msgspec.Struct, frozen=True, gc=False):
    """One recorded request. Token counts are the recorded tokenizer's, not the tested model's."""

    at_ns: int
    """When it arrived, on the trace's own clock."""
    num_input: int
    num_output: int


class Format(msgspec.Struct, frozen=True):
    """One way to write a trace."""

    name: str
    matches: Callable[[str], bool]
    """True if a file with this first line is of the format."""
    read: Callable[[Iterable[str], str], Iterator[TraceRow | str]]
    """(lines, file name) to each line's row, or the reason why it is dropped. Raises TraceError."""
    notes: list[str] = []
    """What it holds and a replay does not reproduce."""


class Trace(msgspec.Struct, frozen=True):
    """A file's usable rows in order of arrival, and what became of the others."""

    path: Path
    format: str
    sha256: str
    rows: list[TraceRow]
    num_read: int
    dropped: dict[str, int]
    """Reason to number of rows: they are counted, never sent."""
    notes: list[str]
    """What the file holds and a replay does not reproduce."""


def drop_reason(num_input: int, num_output: int) -> str | None:
    """Why a row cannot be replayed, or None. Zero lengths are the formats' way to log failures."""
    if num_output == 0:
        return "output length 0"
    if num_input == 0:
        return "input length 0"
    return None
