"""TraceLab's replay table (uw-syfi): CSV of agents' rounds, each after the last answer and a tool's time.

A round's prompt is the first `prefix_len` tokens of what was said so far, answers included, and
`input_len` new ones. TraceLab's JSONL recordings are not read.
"""

from collections.abc import Iterator

import msgspec

from loadgen.traces.columns import Fields, header, read_columns
from loadgen.traces.format import Format, ReadOptions, Source
from loadgen.traces.row import Blocks, Dropped, TraceRow, usable

_NS_PER_MS = 1_000_000
_TIME, _SESSION, _PREFIX = "arrival_time", "session_id", "prefix_len"
_INPUT, _OUTPUT, _WAIT = "input_len", "output_len", "tool_wait_after_ms"


class _Said(msgspec.Struct):
    """A session so far."""

    sizes: list[int] = []
    """Tokens of each piece: new input and answer in turn. A piece's id is its place."""
    number: int | None = None
    wait_s: float = 0.0


def matches(source: Source) -> bool:
    return {_TIME, _SESSION, _PREFIX, _INPUT, _OUTPUT, _WAIT} <= header(source.first_line)


def read(source: Source, options: ReadOptions) -> Iterator[TraceRow | Dropped]:
    """See Format.read."""
    sessions: dict[str, _Said] = {}
    for number, fields in enumerate(read_columns(source)):
        said = sessions.setdefault(fields.text(_SESSION), _Said())
        yield usable(_row(fields, said))
        said.number, said.wait_s = number, fields.number(_WAIT) / 1000


def _row(fields: Fields, said: _Said) -> TraceRow:
    prefix, new, output = fields.count(_PREFIX), fields.count(_INPUT), fields.count(_OUTPUT)
    said.sizes = [*_cut(said.sizes, prefix), new]
    ids = tuple(range(len(said.sizes)))
    row = TraceRow(
        round(fields.number(_TIME) * _NS_PER_MS),
        prefix + new,
        output,
        content=Blocks(fields.text(_SESSION), ids, tuple(said.sizes)),
        after=said.number,
        think_s=None if said.number is None else said.wait_s,
    )
    said.sizes.append(output)
    return row


def _cut(sizes: list[int], num_tokens: int) -> list[int]:
    """The pieces that the first `num_tokens` tokens reach; what no piece reaches is one more."""
    kept: list[int] = []
    for size in sizes:
        if num_tokens <= 0:
            return kept
        kept.append(min(size, num_tokens))
        num_tokens -= size
    return [*kept, num_tokens] if num_tokens > 0 else kept


FORMAT = Format(
    "tracelab", f"CSV with the columns {_SESSION},{_TIME},{_PREFIX},{_INPUT},{_OUTPUT},{_WAIT}", matches, read
)
