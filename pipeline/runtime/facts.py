"""Facts: what messages are taken apart into, to be compared; and what is said otherwise than by messages.

Times are no facts: a field is one if its name ends in `_ns` (when), or in `_s` (for how long, as measured).
"""

import math
from typing import Any, NamedTuple

import msgspec

from pipeline.errors import RequestError
from pipeline.messages import Completion, FinishReason, Message, StepHandle, TokenCall, TokenLogprob

TOLERANCE = 1e-3
"""Within which the figures of two devices are the same: probabilities (their logarithms), embeddings."""
_TIMES = ("_ns", "_s")


class Key(NamedTuple):
    what: str
    """For a reader: `text`, `token ids`, the name of a message type, ..."""
    request_id: int | None = None


Fact = tuple[Key, list[Any] | int]


class Ended(NamedTuple):
    """The last item of a request's text or tokens."""

    finish_reason: FinishReason

    def __repr__(self) -> str:
        return f"END({self.finish_reason.name})"


class About(float):
    """A float that is the same as any other within TOLERANCE."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, float):
            return NotImplemented
        if math.isnan(self):
            return math.isnan(other)
        return math.isclose(self, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)

    def __ne__(self, other: object) -> bool:
        return not self == other  # float has one of its own

    __hash__ = None  # type: ignore[assignment]  # what is about the same has no hash


# What is not said by messages, as messages ---------------------------------------------------------


class SinkCall(Message, frozen=True):
    request_id: int


class Written(SinkCall, frozen=True):
    text: str
    num_tokens: int


class Spelled(SinkCall, frozen=True):
    entries: list[TokenLogprob]


class Done(SinkCall, frozen=True):
    completion: Completion


class Failed(SinkCall, frozen=True):
    error: RequestError


class Replied(Message, frozen=True):
    call: TokenCall
    answer: list[int] | str | RequestError


# Messages as plain values ---------------------------------------------------------------------------


def plain(value: object) -> Any:
    """A message or a part of one as dicts, lists and plain values, without times."""
    if isinstance(value, (str, int, bytes, type(None))):
        return value
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, msgspec.Struct) and not is_step(value):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__ if not is_time(name)}
    if isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        parts = [plain(each) for each in value]
        return parts if names is None else dict(zip(names, parts, strict=True))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, RequestError):
        return {name: plain(each) for name, each in vars(value).items() if not is_time(name)}
    if is_step(value):
        return _plain_step(value)
    return type(value).__qualname__  # a sink, a reply: somebody to be told, not something said


def is_time(name: str) -> bool:
    """Whether a field of that name is a time."""
    return name.endswith(_TIMES)


def _plain_step(step: Any) -> dict[str, object]:
    """Waits for the device."""
    return {
        "plan": plain(step.plan),
        "token_ids": list(step.token_ids_sync()),
        "drops": plain(step.drops_sync()),
        "logprobs": plain(step.logprobs_sync()),
        "scores": plain(step.scores_sync()),
        "embeddings": plain(step.embeddings_sync()),
    }


def is_step(value: object) -> bool:
    return hasattr(value, "token_ids_sync")  # a Protocol without a cheap isinstance


def name_of(message: object) -> str:
    return StepHandle.__name__ if is_step(message) else type(message).__name__
