"""JSONL of prompts without times: `{"prompt"}`, `{"text"}`, `{"turns"}` or `{"messages"}`, one a line.

`turns` are a user's, each sent after the answer to the one before, as strings or as `{"text", "delay"}`
(ms). `max_tokens` (or `output_tokens`, `output_length`) is the answer's length.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from loadgen.errors import TraceError
from loadgen.traces.format import Format, ReadOptions, Source, json_object
from loadgen.traces.row import OUTPUT_TOKENS, Content, Dropped, Message, Note, TraceRow, usable

_PROMPTS = ("prompt", "text", "turns", "messages")
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Turn(msgspec.Struct):
    text: str
    delay: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class _Line(msgspec.Struct):
    prompt: str | None = None
    text: str | None = None
    turns: Annotated[list[str | _Turn], msgspec.Meta(min_length=1)] | None = None
    messages: Annotated[tuple[Message, ...], msgspec.Meta(min_length=1)] | None = None
    max_tokens: _Count | None = None
    output_tokens: _Count | None = None
    output_length: _Count | None = None
    tools: list[Any] | None = None

    @property
    def num_output(self) -> int | None:
        given = (self.max_tokens, self.output_tokens, self.output_length)
        return next((count for count in given if count is not None), None)


_decoder = msgspec.json.Decoder(_Line)


def matches(source: Source) -> bool:
    row = json_object(source.first_line)
    return any(name in row for name in _PROMPTS) and not {"timestamp", "delay", "input_length"} & row.keys()


def read(source: Source, options: ReadOptions) -> Iterator[TraceRow | Dropped | Note]:
    """See Format.read."""
    number, num_unsized, num_tools = 0, 0, 0
    for where, text in source.numbered():
        line = _decode(text, where)
        for row in _rows(line, number):
            yield usable(row)
            number += 1
            num_unsized += line.num_output is None
        num_tools += bool(line.tools)
    if num_unsized:
        yield Note(f"{num_unsized} rows give no max_tokens: {OUTPUT_TOKENS} tokens are asked of each")
    if num_tools:
        yield Note(f"{num_tools} rows have tools, which are not sent")


def turns(texts: list[str], delays_s: list[float], num_output: int, number: int) -> Iterator[TraceRow]:
    """A user's turns as rows, the first of them the `number`-th that the reader yields."""
    for i, (text, delay_s) in enumerate(zip(texts, delays_s, strict=True)):
        content = (Message("user", text),)
        if i == 0:
            yield TraceRow(0, None, num_output, content=content)
        else:
            yield TraceRow(
                0, None, num_output, content, after=number + i - 1, think_s=delay_s, adds_turn=True
            )


def _decode(text: str, where: str) -> _Line:
    try:
        line = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise TraceError(f"{where}: {error}") from error
    given = [name for name in _PROMPTS if getattr(line, name) is not None]
    if not given:
        raise TraceError(f"{where}: needs one of {', '.join(_PROMPTS)}")
    return line


def _rows(line: _Line, number: int) -> Iterator[TraceRow]:
    num_output = OUTPUT_TOKENS if line.num_output is None else line.num_output
    if line.turns is not None:
        said = [_Turn(turn) if isinstance(turn, str) else turn for turn in line.turns]
        delays_s = [turn.delay / 1000 for turn in said]
        return turns([turn.text for turn in said], delays_s, num_output, number)
    content: Content | None = line.messages or line.prompt or line.text
    return iter([TraceRow(0, None if content else 0, num_output, content=content or None)])


FORMAT = Format(
    "prompts", f"JSONL with one of {', '.join(_PROMPTS)}, without times", matches, read, is_timed=False
)
