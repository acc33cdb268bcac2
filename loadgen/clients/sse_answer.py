"""One answer's server-sent events, in order: what is a token, and whether the answer is whole."""

import msgspec

from loadgen.clients.api import ErrorBody, Usage, finish, timings
from loadgen.record import Record


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    id: str | None = None
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: ErrorBody | None = None
    timings: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Chunk).decode


class SseAnswer:
    """Writes an answer's events into its record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._finish_reason: str | None = None
        self._is_done = False

    def event(self, data: bytes, now_s: float) -> None:
        """Raises msgspec.DecodeError if `data` is not a chunk."""
        if self._is_done:
            return
        if data == b"[DONE]":
            self._is_done = True
            return
        chunk = _decode(data)
        if chunk.choices:
            self._choices(chunk.choices, now_s)
        if chunk.usage is not None:
            self._record.usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        if chunk.error is not None:
            self._record.fail("error_event", chunk.error.message)
        if chunk.timings:
            self._record.server_timings = timings(chunk.timings)
        if self._record.request_name is None:
            self._record.request_name = chunk.id

    def end(self) -> None:
        """The connection ended in order; was the answer whole?"""
        if not self._is_done or self._finish_reason is None:
            missing = "[DONE]" if self._finish_reason is not None else "finish_reason"
            self._record.fail("unterminated", f"the stream ended without {missing}")
        else:
            finish(self._record, self._finish_reason)

    def _choices(self, choices: list[_Choice], now_s: float) -> None:
        for choice in choices:
            visible, is_thought = choice.text, False
            if choice.delta is not None:
                visible = choice.delta.content
                is_thought = bool(choice.delta.reasoning_content or choice.delta.reasoning)
            if visible or is_thought:
                self._record.chunk(now_s, 0, is_answer=bool(visible))
            if visible:
                self._record.say(visible)
            if choice.finish_reason is not None:
                self._finish_reason = choice.finish_reason


def error_message(content: bytes) -> str:
    """The server's error in its own words, else the start of its body."""
    try:
        error = _decode(content).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = None
    return error.message if error is not None else content[:200].decode("utf-8", "replace")
