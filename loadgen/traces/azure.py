"""Azure LLM inference traces: CSV by column name (Patel et al., Splitwise, ISCA 2024; DynamoLLM, HPCA 2025).

Three spellings of TIMESTAMP are published, all read to the nanosecond:
`2023-11-16 18:17:03.9799600`, `2024-05-10 00:00:00.009930+00:00` and `2024-10-15T12:00:00.269Z`.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from loadgen.errors import TraceError
from loadgen.traces.columns import Fields, header, read_columns
from loadgen.traces.format import Format, ReadOptions, Source
from loadgen.traces.row import NS_PER_S, Dropped, TraceRow, usable

_TIME, _INPUT, _OUTPUT, _IMAGES = "TIMESTAMP", "ContextTokens", "GeneratedTokens", "NumImages"
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", flags=re.ASCII
)


def matches(source: Source) -> bool:
    return {_TIME, _INPUT, _OUTPUT} <= header(source.first_line)


def read(source: Source, options: ReadOptions) -> Iterator[TraceRow | Dropped]:
    """See Format.read."""
    for fields in read_columns(source):
        yield _row(fields)


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


def _row(fields: Fields) -> TraceRow | Dropped:
    try:
        at_ns = timestamp_ns(fields.text(_TIME))
    except ValueError as error:
        raise TraceError(f"{fields.where}: {_TIME}: {error}") from error
    row = TraceRow(at_ns, fields.count(_INPUT), fields.count(_OUTPUT))
    if _IMAGES in fields and fields.count(_IMAGES) > 0:
        return Dropped("has images", row)
    return usable(row)


FORMAT = Format("azure", f"CSV with the columns {_TIME},{_INPUT},{_OUTPUT}", matches, read)
