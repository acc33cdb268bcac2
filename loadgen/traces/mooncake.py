"""Mooncake traces (Qin et al., FAST 2025): JSONL of `timestamp`, `input_length`, `output_length`, `hash_ids`.

The timestamp is in milliseconds.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from loadgen.errors import TraceError
from loadgen.traces.row import Format, TraceRow, drop_reason

_NS_PER_MS = 1_000_000
_Count = Annotated[int, msgspec.Meta(ge=0)]
_KEYS = {"timestamp", "input_length", "output_length"}
_OTHER_FORMATS = {"chat_id"}
"""Bailian has the same keys and this one, and counts its time in seconds."""


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Count
    output_length: _Count


_decoder = msgspec.json.Decoder(_Line)


def matches(first_line: str) -> bool:
    """True if `first_line` is a row of such a file."""
    try:
        row = msgspec.json.decode(first_line)
    except msgspec.DecodeError:
        return False
    return isinstance(row, dict) and row.keys() >= _KEYS and not row.keys() & _OTHER_FORMATS


def read(lines: Iterable[str], where: str) -> Iterator[TraceRow | str]:
    """Each line's row, or the reason why it is dropped.

    Raises:
        TraceError: naming `where`, the line and the field.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _row(line, f"{where}:{number}")


def _row(line: str, where: str) -> TraceRow | str:
    try:
        row = _decoder.decode(line)
    except msgspec.DecodeError as error:
        raise TraceError(f"{where}: {error}") from error
    at_ns = round(row.timestamp * _NS_PER_MS)
    return drop_reason(row.input_length, row.output_length) or TraceRow(
        at_ns, row.input_length, row.output_length
    )


FORMAT = Format(
    "mooncake",
    matches,
    read,
    notes=["shared prefixes (hash_ids) are not replayed: every prompt is different text"],
)
