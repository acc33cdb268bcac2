"""Readers of recorded traffic. A format is one module with a FORMAT, listed here."""

import hashlib
from collections import Counter
from pathlib import Path

from loadgen.errors import TraceError
from loadgen.traces import azure, mooncake
from loadgen.traces.row import Format, Trace, TraceRow

__all__ = ["Trace", "TraceRow", "load"]


_FORMATS: tuple[Format, ...] = (azure.FORMAT, mooncake.FORMAT)


def load(path: Path) -> Trace:
    """The trace at `path`; its format is told from its content, never from its name.

    Raises:
        TraceError: no such file, no known format, a wrong field, or no row that can be replayed.
    """
    content = _content(path)
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text (byte {error.start})") from error
    reader = _detect(lines, path)
    rows: list[TraceRow] = []
    dropped: Counter[str] = Counter()
    for row in reader.read(lines, str(path)):
        if isinstance(row, str):
            dropped[row] += 1
        else:
            rows.append(row)
    if not rows:
        raise TraceError(
            f"{path}: no row can be replayed (dropped: {dict(dropped) or 'none, it has no rows'})"
        )
    rows.sort(key=lambda row: row.at_ns)
    sha256 = hashlib.sha256(content).hexdigest()
    return Trace(path, reader.name, sha256, rows, len(rows) + dropped.total(), dict(dropped), reader.notes)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error


def _detect(lines: list[str], path: Path) -> Format:
    if lines == [""]:
        raise TraceError(f"{path}: the file is empty")
    for reader in _FORMATS:
        if reader.matches(lines[0]):
            return reader
    raise TraceError(
        f"{path}:1: not a known trace. Known: Azure CSV (columns TIMESTAMP,ContextTokens,GeneratedTokens) "
        f"and Mooncake JSONL (keys timestamp,input_length,output_length); the line is {lines[0][:80]!r}"
    )
