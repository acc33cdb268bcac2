"""Qwen-Bailian traces (Wang et al., ATC 2025): JSONL, `timestamp` in seconds, hash ids of 16 tokens.

`parent_chat_id` names the request whose answer this one follows, -1 none. How long a user thought is not
recorded, only when the request came. Whether the last, partial block has an id is not documented: both
are read.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from loadgen.errors import TraceError
from loadgen.traces.blocks import uniform
from loadgen.traces.format import Format, ReadOptions, Source, json_object
from loadgen.traces.row import NS_PER_S, Dropped, Note, TraceRow, usable

BLOCK_SIZE = 16
_ROOT = -1
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Line(msgspec.Struct):
    chat_id: int
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Count
    output_length: _Count
    parent_chat_id: int = _ROOT
    type: str = "text"
    hash_ids: tuple[int, ...] = ()


_decoder = msgspec.json.Decoder(_Line)


def matches(source: Source) -> bool:
    return json_object(source.first_line).keys() >= {"chat_id", "timestamp", "input_length", "output_length"}


def read(source: Source, options: ReadOptions) -> Iterator[TraceRow | Dropped | Note]:
    """See Format.read."""
    numbers: dict[int, int] = {}
    num_lost = 0
    for number, (where, text) in enumerate(source.numbered()):
        try:
            line = _decoder.decode(text)
        except msgspec.DecodeError as error:
            raise TraceError(f"{where}: {error}") from error
        num_lost += line.parent_chat_id != _ROOT and line.parent_chat_id not in numbers
        row = _row(line, numbers.get(line.parent_chat_id), options, where)
        numbers[line.chat_id] = number
        yield Dropped("has images", row) if line.type == "image" else usable(row)
    if num_lost:
        yield Note(f"{num_lost} rows follow a request that is not in the file: they begin sessions")


def _row(line: _Line, after: int | None, options: ReadOptions, where: str) -> TraceRow:
    size = options.block_size or BLOCK_SIZE
    blocks = (
        uniform(line.hash_ids, size, line.input_length, where, last_is_partial=None)
        if line.hash_ids
        else None
    )
    at_ns = round(line.timestamp * NS_PER_S)
    return TraceRow(at_ns, line.input_length, line.output_length, content=blocks, after=after)


FORMAT = Format(
    "bailian",
    "JSONL with chat_id, timestamp (s), input_length and output_length",
    matches,
    read,
    has_blocks=True,
)
