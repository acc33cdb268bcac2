"""RAGPulse (flashserve): JSONL, `timestamp` is a string of seconds, `hash_ids` an object.

A hash id stands for one component (system prompt, passage, history, question); its tokens are in a table
beside the trace: `NAME.lengths.json` for `NAME.jsonl`. The few tokens between the components have no id.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from loadgen.errors import TraceError
from loadgen.traces.format import Format, ReadOptions, Source, json_object
from loadgen.traces.row import NS_PER_S, Blocks, Dropped, TraceRow, usable
from loadgen.traces.sessions import Sessions

_Count = Annotated[int, msgspec.Meta(ge=0)]
_MAX_BETWEEN = 64
"""Tokens of a prompt that belong to no component: more, and the table is another trace's."""


class _Line(msgspec.Struct):
    timestamp: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?$")]
    input_length: _Count
    output_length: _Count
    hash_ids: dict[str, tuple[int, ...]]
    session_id: str | None = None


_decoder = msgspec.json.Decoder(_Line)


def matches(source: Source) -> bool:
    row = json_object(source.first_line)
    return isinstance(row.get("timestamp"), str) and isinstance(row.get("hash_ids"), dict)


def read(source: Source, options: ReadOptions) -> Iterator[TraceRow | Dropped]:
    """See Format.read."""
    lengths = _lengths(source, source.path.with_suffix(".lengths.json"))
    sessions = Sessions()
    for where, line in source.numbered():
        try:
            row = _decoder.decode(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"{where}: {error}") from error
        after, _ = sessions.follow(row.session_id)
        at_ns = round(float(row.timestamp) * NS_PER_S)
        yield usable(
            TraceRow(at_ns, row.input_length, row.output_length, _blocks(row, lengths, where), after)
        )


def _blocks(row: _Line, lengths: dict[int, int], where: str) -> Blocks:
    ids = tuple(hash_id for component in row.hash_ids.values() for hash_id in component)
    try:
        sizes = tuple(lengths[hash_id] for hash_id in ids)
    except KeyError as error:
        raise TraceError(f"{where}: hash_ids: the table of lengths has no id {error}") from error
    if not 0 <= row.input_length - sum(sizes) <= _MAX_BETWEEN:
        raise TraceError(
            f"{where}: input_length is {row.input_length}, by the table its parts have {sum(sizes)} tokens"
        )
    return Blocks("", ids, sizes)


def _lengths(source: Source, path: Path) -> dict[int, int]:
    try:
        return msgspec.json.decode(source.text(path), type=dict[int, int], strict=False)
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: expected {{id: tokens}}: {error}") from error


FORMAT = Format(
    "ragpulse",
    "JSONL with timestamp (a string of seconds) and hash_ids (an object); NAME.lengths.json beside it",
    matches,
    read,
)
