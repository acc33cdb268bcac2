"""Frames of the websocket protocol: JSON objects, many requests on one socket, told apart by `id`.

client: generate, cancel. Server: accepted, delta, done, error. docs/api.md has the whole of it.
"""

from collections.abc import Sequence

import msgspec

from pipeline.core.wire.faults import error_object
from pipeline.core.wire.fields import decode_object, wrong
from pipeline.core.wire.logprobs import token_list
from pipeline.core.wire.usage import finish_word, timings_of, usage_of
from pipeline.errors import RequestError
from pipeline.messages import Completion, TokenLogprob

MAX_ID_CHARS = 128

_encode = msgspec.json.Encoder().encode


class Frame(msgspec.Struct, frozen=True):
    """A frame from a client: its id is known, the rest is not checked yet."""

    id: str
    type: object
    fields: dict[str, object]
    """All but `type` and `id`."""


def parse_frame(data: str) -> Frame:
    """Raises RequestError for a frame that cannot be tied to an id."""
    fields = decode_object(data)
    kind, client_id = fields.pop("type", None), fields.pop("id", None)
    if not isinstance(client_id, str) or not 0 < len(client_id) <= MAX_ID_CHARS:
        raise wrong("id", f"a string of 1 to {MAX_ID_CHARS} characters", client_id)
    return Frame(client_id, kind, fields)


def take_traceparent(frame: Frame) -> str | None:
    """The frame's `traceparent`, removed from its fields. Its text is not checked, only that it is one."""
    value = frame.fields.pop("traceparent", None)
    if value is not None and not isinstance(value, str):
        raise wrong("traceparent", "a string", value)
    return value


def error_frame(client_id: str | None, error: RequestError) -> bytes:
    """`client_id` is None where the fault cannot be tied to a request."""
    return _encode({"type": "error", "id": client_id, "error": error_object(error)})


class Answered:
    """The server's frames about one request."""

    def __init__(self, client_id: str, *, timings: bool) -> None:
        self._id = client_id
        self._timings = timings
        self._before_text = b'{"type":"delta","id":%b,"text":' % _encode(client_id)

    def accepted(self, traceparent: str = "") -> bytes:
        """`traceparent` is of the request's own span; empty: it has no trace."""
        frame = {"type": "accepted", "id": self._id}
        return _encode(frame | {"traceparent": traceparent} if traceparent else frame)

    def delta(self, text: str, num_tokens: int, told: Sequence[TokenLogprob] = ()) -> bytes:
        """`told`: of its tokens, where the request asked for logprobs."""
        logprobs = b',"logprobs":' + _encode(token_list(told)) if told else b""
        return b'%b%b,"tokens":%d%b}' % (self._before_text, _encode(text), num_tokens, logprobs)

    def done(self, completion: Completion) -> bytes:
        frame: dict[str, object] = {
            "type": "done",
            "id": self._id,
            "finish_reason": finish_word(completion.finish_reason),
            "usage": usage_of([completion]),
        }
        if self._timings:
            frame["timings"] = timings_of(completion.timings)
        return _encode(frame)

    def error(self, error: RequestError) -> bytes:
        return error_frame(self._id, error)
