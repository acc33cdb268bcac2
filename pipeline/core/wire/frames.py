"""Frames of the websocket protocol: JSON objects, many requests on one socket, told apart by `id`.

client: generate, cancel, grant, ack, resume, ping. Server: hello, accepted, resumed, delta, done, error,
pong. docs/websocket.md has the whole of it; core.wire.answered makes what is sent about a request.
"""

from typing import NamedTuple

import msgspec

from pipeline.core.wire.faults import error_object
from pipeline.core.wire.fields import Fields, decode_object, wrong
from pipeline.core.wire.requests import MAX_CREDITS
from pipeline.errors import RequestError

VERSION = 1
MAX_ID_CHARS = 128
MAX_INDEX = 1 << 53
"""What a number in JavaScript can count to."""
_MAX_TOKEN_CHARS = 64

_encode = msgspec.json.Encoder().encode


class Frame(msgspec.Struct, frozen=True):
    """A frame from a client: its id is known, the rest is not checked yet."""

    id: str
    type: object
    fields: dict[str, object]
    """All but `type` and `id`."""


class Resumption(NamedTuple):
    """What a `resume` frame asks for."""

    session: str
    last_index: int
    """Of the last frame of the request that the client has; 0: of none."""


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


def check_bare(frame: Frame) -> None:
    """Of `cancel` and `ping`: there is nothing but its type and id."""
    Fields(frame.fields).finish({})


def parse_grant(frame: Frame) -> int:
    """Tokens."""
    fields = Fields(frame.fields)
    num_tokens = _required("tokens", fields.integer("tokens", 1, MAX_CREDITS))
    fields.finish({})
    return num_tokens


def parse_ack(frame: Frame) -> int:
    """The index of the last frame that the client has."""
    fields = Fields(frame.fields)
    index = _required("index", fields.integer("index", 0, MAX_INDEX))
    fields.finish({})
    return index


def parse_resume(frame: Frame) -> Resumption:
    fields = Fields(frame.fields)
    session = fields.text("session") or ""
    if not 0 < len(session) <= _MAX_TOKEN_CHARS:
        raise RequestError(
            "'session' must be that of a 'hello' frame.", param="session", code="invalid_value"
        )
    index = _required("index", fields.integer("index", 0, MAX_INDEX))
    fields.finish({})
    return Resumption(session, index)


def _required(name: str, value: int | None) -> int:
    if value is None:
        raise RequestError(f"'{name}' is missing.", param=name, code="missing_field")
    return value


def hello_frame(session: str, model: str, limits: dict[str, object]) -> bytes:
    """The first of a socket. `session` is what a `resume` on another one must name: a secret."""
    frame = {"type": "hello", "version": VERSION, "session": session, "model": model, "limits": limits}
    return _encode(frame)


def pong_frame(client_id: str) -> bytes:
    return _encode({"type": "pong", "id": client_id})


def error_frame(client_id: str | None, error: RequestError) -> bytes:
    """`client_id` is None where the fault cannot be tied to a request."""
    return _encode({"type": "error", "id": client_id, "error": error_object(error)})
