"""Mooncake traces (Qin et al., FAST 2025): JSONL, `timestamp` in milliseconds, hash ids of 512 tokens.

A hash id stands for a block of 512 tokens, the last one for what is left: there are ceil(input_length /
512) of them. Later tools (AIPerf) add `text_input` or `messages` in place of `input_length`, and
`session_id`: a row then follows the one before it of its session, `delay` ms after that answer, or when
its `timestamp` comes.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from loadgen.errors import TraceError
from loadgen.traces.blocks import uniform
from loadgen.traces.format import Format, ReadOptions, Source, json_object
from loadgen.traces.row import OUTPUT_TOKENS, Content, Dropped, Message, Note, TraceRow, usable
from loadgen.traces.sessions import Sessions

BLOCK_SIZE = 512
_NS_PER_MS = 1_000_000
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Ms = Annotated[float, msgspec.Meta(ge=0)]
_PROMPTS = {"input_length", "text_input", "messages"}
_OTHER_FORMATS = {"chat_id", "parent_chat_id"}
"""Bailian has the same keys and these, and counts its time in seconds."""


class _Line(msgspec.Struct):
    timestamp: _Ms | None = None
    delay: _Ms | None = None
    input_length: _Count | None = None
    output_length: _Count | None = None
    hash_ids: tuple[int, ...] = ()
    text_input: str | None = None
    messages: tuple[Message, ...] | None = None
    tools: list[Any] | None = None
    session_id: str | None = None


_decoder = msgspec.json.Decoder(_Line)


def matches(source: Source) -> bool:
    row = json_object(source.first_line)
    is_timed = "timestamp" in row or "delay" in row
    has_prompt = bool(row.keys() & _PROMPTS) and ("input_length" not in row or "output_length" in row)
    return is_timed and has_prompt and not row.keys() & _OTHER_FORMATS


def read(source: Source, options: ReadOptions) -> Iterator[TraceRow | Dropped | Note]:
    """See Format.read."""
    sessions, now_ms, num_unsized, num_tools = Sessions(), dict[str, float](), 0, 0
    for where, text in source.numbered():
        line = _decode(text, where)
        num_unsized += line.output_length is None
        num_tools += bool(line.tools)
        yield usable(_row(line, _at_ms(line, now_ms, where), options, sessions, where))
    if num_unsized:
        yield Note(f"{num_unsized} rows give no output_length: {OUTPUT_TOKENS} tokens are asked of each")
    if num_tools:
        yield Note(f"{num_tools} rows have tools, which are not sent")


def _decode(text: str, where: str) -> _Line:
    try:
        line = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise TraceError(f"{where}: {error}") from error
    prompts = [name for name in sorted(_PROMPTS) if getattr(line, name) is not None]
    if len(prompts) != 1:
        raise TraceError(
            f"{where}: needs one of input_length, text_input and messages, has {prompts or 'none'}"
        )
    if line.output_length is None and line.input_length is not None:
        raise TraceError(f"{where}: output_length is missing")
    if line.hash_ids and line.input_length is None:
        raise TraceError(f"{where}: hash_ids need input_length, not {prompts[0]}")
    return line


def _at_ms(line: _Line, now_ms: dict[str, float], where: str) -> float:
    """When it arrives; after a delay: as soon as it could be if answers took no time."""
    if line.timestamp is None and line.delay is not None and line.session_id is None:
        raise TraceError(f"{where}: delay needs session_id")
    if line.timestamp is None and line.delay is None and line.session_id not in now_ms:
        raise TraceError(f"{where}: timestamp is missing")
    session = line.session_id or ""
    at_ms = now_ms.get(session, 0.0) + (line.delay or 0.0) if line.timestamp is None else line.timestamp
    now_ms[session] = at_ms
    return at_ms


def _row(line: _Line, at_ms: float, options: ReadOptions, sessions: Sessions, where: str) -> TraceRow:
    after, _ = sessions.follow(line.session_id)
    is_delayed = after is not None and line.timestamp is None
    content = _content(line, options, where)
    is_empty = line.input_length is None and not content
    return TraceRow(
        round(at_ms * _NS_PER_MS),
        0 if is_empty else line.input_length,
        OUTPUT_TOKENS if line.output_length is None else line.output_length,
        content=content or None,
        after=after,
        think_s=(line.delay or 0.0) / 1000 if is_delayed else None,
    )


def _content(line: _Line, options: ReadOptions, where: str) -> Content | None:
    if line.input_length is None:
        return line.text_input if line.messages is None else line.messages
    if not line.hash_ids:
        return None
    size = options.block_size or BLOCK_SIZE
    return uniform(line.hash_ids, size, line.input_length, where, last_is_partial=True)


FORMAT = Format(
    "mooncake",
    "JSONL with timestamp or delay (ms), and input_length, output_length (or text_input, or messages)",
    matches,
    read,
    has_blocks=True,
)
