"""Answers in OpenAI's shapes: whole bodies, and what the choices of a stream share and end with."""

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar, Protocol

import msgspec

from pipeline.core.wire.choices import ChatChoice, CompletionChoice, Result, StreamShape
from pipeline.core.wire.faults import error_event
from pipeline.core.wire.requests import Wanted
from pipeline.core.wire.usage import timings_of, usage_of
from pipeline.errors import RequestError
from pipeline.messages import Completion

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
"""A comment, which a client must ignore (WHATWG HTML 9.2.6)."""


class AnswerShape(Protocol):
    """How one HTTP request is answered."""

    id: str

    @property
    def choices(self) -> Sequence[StreamShape]: ...

    def end(self, completions: Sequence[Completion]) -> bytes:
        """What ends a stream once all choices have finished."""
        ...

    def fail(self, error: RequestError) -> bytes:
        """What ends a stream that has begun and failed."""
        ...

    def whole(self, results: Sequence[Result]) -> bytes:
        """The body of an answer that is not streamed."""
        ...


class Answer(ABC):
    """Implements AnswerShape. To one HTTP request, whose choices are `wanted`, in the order of their indices.

    Args:
        key: with ID_PREFIX, the answer's id.
    """

    ID_PREFIX: ClassVar[str]
    WHOLE: ClassVar[str]
    CHUNK: ClassVar[bytes]
    CHOICE: ClassVar[type[CompletionChoice | ChatChoice]]

    def __init__(self, key: str, created_s: int, model: str, wanted: Sequence[Wanted]) -> None:
        self.id = self.ID_PREFIX + key
        self._created_s = created_s
        self._model = model
        self._wanted = wanted[0]
        """What is asked for once, for all of them."""
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            _encode(self.id),
            self.CHUNK,
            created_s,
            _encode(model),
        )
        self.choices: list[CompletionChoice | ChatChoice] = [
            self.CHOICE(index, self._head, each) for index, each in enumerate(wanted)
        ]

    def end(self, completions: Sequence[Completion]) -> bytes:
        """What ends a stream once all choices have finished.

        Trap 61: with include_usage the usage comes in a chunk of its own, without choices, and last.
        """
        if not self._wanted.include_usage:
            return _DONE
        return self._head + b'],"usage":' + _encode(self._usage(completions)) + b"}\n\n" + _DONE

    def fail(self, error: RequestError) -> bytes:
        return error_event(error)

    def whole(self, results: Sequence[Result]) -> bytes:
        """The body of an answer that is not streamed. Timings are those of the first choice."""
        completions = [result.completion for result in results]
        body: dict[str, object] = {
            "id": self.id,
            "object": self.WHOLE,
            "created": self._created_s,
            "model": self._model,
            "choices": [choice.whole(result) for choice, result in zip(self.choices, results, strict=True)],
            "usage": self._usage(completions),
        }
        if self._wanted.timings:
            body["timings"] = timings_of(completions[0].timings)
        return _encode(body)

    def _usage(self, completions: Sequence[Completion]) -> dict[str, object]:
        return usage_of(completions, self._wanted.num_alike)


class CompletionAnswer(Answer):
    """POST /v1/completions."""

    ID_PREFIX = "cmpl-"
    WHOLE = "text_completion"
    CHUNK = b"text_completion"
    CHOICE = CompletionChoice


class ChatAnswer(Answer):
    """POST /v1/chat/completions."""

    ID_PREFIX = "chatcmpl-"
    WHOLE = "chat.completion"
    CHUNK = b"chat.completion.chunk"
    CHOICE = ChatChoice
