"""Messages as bytes, and back: what recordings hold, and how a copy of a message is made.

msgpack by field names, so that a message which was written before a field was added can still be read. What
is no data is left out, and something stands for it afterwards (messages.stand_ins). Secrets are not written:
see `_without_secrets` and `_with_alias`.
"""

import secrets
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import asdict, replace

from pipeline.errors import StagelineError
from pipeline.messages import (
    Cancel,
    ClearPins,
    DeviceLost,
    DeviceReady,
    DiskMoved,
    DiskMoves,
    GenerateRequest,
    Grant,
    Message,
    Open,
    Pause,
    Rejected,
    Reopen,
    Resume,
    Room,
    SampledBatch,
    StepHandle,
    StepPlan,
    TextBatch,
    TokenBatch,
    TokenCall,
    TokenizedRequest,
    Wake,
)
from pipeline.messages.stand_ins import TAKES_ALL, RecordedStep

SCHEMA = 1
"""Of the messages. Rises when one that was written by the schema before would be misread."""

_SALT_KEY = secrets.token_bytes(16)
"""Of this process: a cache_salt has the same alias in all that it writes, and nobody can guess it."""

_encode = msgspec.msgpack.Encoder().encode


def kind_of(message: object) -> str:
    """What `decode` must be told of it. StagelineError: no link carries such a thing."""
    return kind_of_type(type(message))


def kind_of_type(kind: type) -> str:
    """Of messages of this class. StagelineError: no link carries such a thing."""
    if kind in _NAMES:
        return _NAMES[kind]
    if hasattr(kind, "token_ids_sync"):  # StepHandle: a Protocol without a cheap issubclass
        return StepHandle.__name__
    raise StagelineError(f"{kind.__name__} cannot be recorded: no link carries it")


def is_ready(message: object) -> bool:
    """Whether `encode` would not wait. Raises what a fault of the device raises."""
    return type(message) in _NAMES or cast(StepHandle, message).is_ready()


def data_of(message: object) -> object:
    """The message, a step as what came of it. Waits for the step's device; raises what its fault raises."""
    return message if type(message) in _NAMES else RecordedStep.of(cast(StepHandle, message))


def encode(message: object) -> bytes:
    """Its fields. Waits for a step's device; raises what its fault raises."""
    written = written_of(kind_of(message))
    return _encode(message if written is None else written(message))


def written_of(kind: str) -> Callable[[Any], msgspec.Struct] | None:
    """What makes, of a message of this kind, that whose fields are written; None: they are its own."""
    return _FORMS[kind].written


def decode(kind: str, data: bytes | msgspec.Raw) -> Any:
    """The message. StagelineError: it is none."""
    form = _FORMS.get(kind)
    if form is None:
        raise StagelineError(f"{kind!r} is no message: this Stageline knows {', '.join(_FORMS)}")
    try:
        fields = form.decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StagelineError(f"it is no {kind}: {error}") from error
    return fields if form.read is None else form.read(fields)


class _Form(NamedTuple):
    """How one kind of message is written."""

    decoder: msgspec.msgpack.Decoder[Any]
    written: Callable[[Any], msgspec.Struct] | None = None
    """What is encoded in its place,"""
    read: Callable[[Any], object] | None = None
    """and the message that is made of what was decoded."""


def _all_but(kind: type[msgspec.Struct], *left_out: str, adds: Any = ()) -> type[msgspec.Struct]:
    """A struct with the other fields of `kind`, then those that it adds."""
    fields: list[Any] = [
        (field.name, field.type)
        if field.default is msgspec.NODEFAULT
        else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(kind)
        if field.name not in left_out
    ]
    return msgspec.defstruct(kind.__name__, [*fields, *adds], bases=(Message,), frozen=True)


_Opened = _all_but(Open, "sink", "logprobs_sink", adds=[("asks_logprobs", bool, False)])
_Called = _all_but(TokenCall, "reply")


def _written_open(message: Open) -> msgspec.Struct:
    fields = asdict(message)
    del fields["sink"]
    asks = fields.pop("logprobs_sink") is not None
    return _Opened(**fields, asks_logprobs=asks)


def _read_open(read: msgspec.Struct) -> Open:
    fields = asdict(read)
    asks = fields.pop("asks_logprobs")
    return Open(**fields, sink=TAKES_ALL, logprobs_sink=TAKES_ALL if asks else None)


def _written_call(message: TokenCall) -> msgspec.Struct:
    fields = asdict(message)
    del fields["reply"]
    return _Called(**fields)


def _without_secrets(ready: DeviceReady) -> DeviceReady:
    """What the disk has kept can be found by its secret alone, and belongs to other requests."""
    if ready.disk is None:
        return ready
    return replace(ready, disk=replace(ready.disk, secret=b"", kept=()))


def _with_alias(request: GenerateRequest | TokenizedRequest) -> msgspec.Struct:
    """Whoever knows a cache_salt can find out, by time, what was asked with it."""
    if not (salt := request.terms.cache_salt):
        return request
    alias = blake2b(salt.encode(), digest_size=8, key=_SALT_KEY).hexdigest()
    return replace(request, terms=replace(request.terms, cache_salt=alias))


_PLAIN: tuple[type[msgspec.Struct], ...] = (
    Cancel,
    ClearPins,
    DeviceLost,
    DiskMoved,
    DiskMoves,
    Grant,
    Pause,
    Rejected,
    Reopen,
    Resume,
    Room,
    SampledBatch,
    StepPlan,
    TextBatch,
    TokenBatch,
    Wake,
)
"""Written as they are."""

_Decoder = msgspec.msgpack.Decoder
_FORMS = {kind.__name__: _Form(_Decoder(kind)) for kind in _PLAIN} | {
    "DeviceReady": _Form(_Decoder(DeviceReady), _without_secrets),
    "GenerateRequest": _Form(_Decoder(GenerateRequest), _with_alias),
    "Open": _Form(_Decoder(_Opened), _written_open, _read_open),
    "StepHandle": _Form(_Decoder(RecordedStep), RecordedStep.of),
    "TokenCall": _Form(_Decoder(_Called), _written_call, lambda read: TokenCall(TAKES_ALL, **asdict(read))),
    "TokenizedRequest": _Form(_Decoder(TokenizedRequest), _with_alias),
}
KINDS = frozenset(_FORMS)
_NAMES: dict[type, str] = {kind: kind.__name__ for kind in _PLAIN} | {
    DeviceReady: "DeviceReady",
    GenerateRequest: "GenerateRequest",
    Open: "Open",
    TokenCall: "TokenCall",
    TokenizedRequest: "TokenizedRequest",
}
