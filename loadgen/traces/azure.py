"""Azure LLM inference traces: CSV by column name (Patel et al., Splitwise, ISCA 2024; DynamoLLM, HPCA 2025).

Three spellings of TIMESTAMP are published, all read to the nanosecond:
`2023-11-16 18:17:03.9799600`, `2024-05-10 00:00:00.009930+00:00` and `2024-10-15T12:00:00.269Z`.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from loadgen.errors import TraceError
from loadgen.traces.row import NS_PER_S, Format, TraceRow, drop_reason

_TIME, _INPUT, _OUTPUT, _IMAGES = "TIMESTAMP", "ContextTokens", "GeneratedTokens", "NumImages"
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", flags=re.ASCII
)


def matches(first_line: str) -> bool:
    """True if `first_line` is the header of such a file."""
    return {_TIME, _INPUT, _OUTPUT} <= {name.strip() for name in first_line.split(",")}


def read(lines: Iterable[str], where: str) -> Iterator[TraceRow | str]:
    """Each line's row, or the reason why it is dropped.

    Raises:
        TraceError: naming `where`, the line and the field.
    """
    reader = csv.reader(lines)
    columns = {name.strip(): i for i, name in enumerate(next(reader))}
    for fields in reader:
        if fields:
            yield _row(fields, columns, f"{where}:{reader.line_num}")


def timestamp_ns(text: str) -> int:
    """Nanoseconds since 1970 of one of the three spellings; without a zone it is UTC.

    Raises:
        ValueError: it is none of them, or no such day or hour exists.
    """
    found = _STAMP.fullmatch(text)
    if found is None:
        raise ValueError(f"expected YYYY-MM-DD HH:MM:SS[.fraction][Z|+HH:MM], got {text!r}")
    day, clock, fraction, zone = found.groups()
    whole = datetime.fromisoformat(f"{day}T{clock}{zone or 'Z'}").astimezone(UTC)
    return int(whole.timestamp()) * NS_PER_S + int((fraction or "").ljust(9, "0"))


def _row(fields: list[str], columns: dict[str, int], where: str) -> TraceRow | str:
    if len(fields) != len(columns):
        raise TraceError(f"{where}: expected {len(columns)} fields, got {len(fields)}")
    num_input = _count(fields, columns, _INPUT, where)
    num_output = _count(fields, columns, _OUTPUT, where)
    if _IMAGES in columns and _count(fields, columns, _IMAGES, where) > 0:
        return "has images"
    try:
        at_ns = timestamp_ns(fields[columns[_TIME]].strip())
    except ValueError as error:
        raise TraceError(f"{where}: {_TIME}: {error}") from error
    return drop_reason(num_input, num_output) or TraceRow(at_ns, num_input, num_output)


def _count(fields: list[str], columns: dict[str, int], name: str, where: str) -> int:
    text = fields[columns[name]].strip()
    if not (text.isascii() and text.isdigit()):
        raise TraceError(f"{where}: {name}: expected a whole number, 0 or more, got {text!r}")
    return int(text)


FORMAT = Format("azure", matches, read)
