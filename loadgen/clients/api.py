"""What the generator needs of a client, and the bodies both clients send and read."""

from typing import Any, Protocol

import msgspec

from loadgen.behaviours import PLAIN, Conduct
from loadgen.record import Record, ServerTimings
from loadgen.traces.row import Message

Prompt = str | list[int] | tuple[Message, ...]
"""A text, its token ids, or a chat."""

COMPLETE = ("stop", "length")
"""Finish reasons of an answer that is whole; any other is a failure."""


class Client(Protocol):
    """Sends one request and writes down what comes back."""

    async def generate(
        self, prompt: Prompt, max_tokens: int, record: Record, conduct: Conduct = PLAIN
    ) -> None:
        """Returns when the answer has ended: whole, with `record.failure`, or by the client's `conduct`.

        Raises only when cancelled. Of `conduct`, patience and reconnecting are the caller's.
        """
        ...


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ErrorBody(msgspec.Struct):
    """OpenAI's error object."""

    message: str = ""
    type: str | None = None
    code: str | int | None = None


def body(model: str | None, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
    """Fields of a greedy request whose length is forced. The WebSocket frame and the POST share them."""
    fields: dict[str, Any] = {
        "messages" if isinstance(prompt, tuple) else "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return fields if model is None else fields | {"model": model}


def timings(raw: msgspec.Raw) -> ServerTimings | None:
    """This project's timings; None for none, or for what another server means by the word."""
    try:
        return msgspec.json.decode(raw, type=ServerTimings) if raw else None
    except msgspec.DecodeError:
        return None


def finish(record: Record, finish_reason: str | None) -> None:
    """Ends a record whose terminal frame came."""
    record.finish_reason = finish_reason
    if finish_reason not in COMPLETE:
        record.fail(f"finish_{finish_reason}", "the server ended the answer early")
    elif not record.chunk_s and not record.output_tokens:
        record.fail("empty", "the answer holds no token")


def describe(error: BaseException) -> str:
    """The error in words, for those that have none."""
    return str(error) or type(error).__name__
