"""Equivalence: what two stages that are fed the same must say alike, and what each may say its own way.

A message is taken apart into facts. Facts of one key are put together in the order in which they were said:
what is a list follows on, what is a number is added. Two stages are equivalent where all keys come to the
same. So what must keep its order shares a key; what need not has keys of its own; what does not matter, none.

A stage declares one as its `equivalence`. Times never count: a field is one if its name ends in `_ns` (when),
or in `_s` (for how long, as measured).
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from pipeline.errors import RequestError
from pipeline.messages import (
    NO_TOKEN,
    Completion,
    DeviceLost,
    DeviceReady,
    DiskMoved,
    DiskMoves,
    FinishReason,
    Logprobs,
    Message,
    Pause,
    Reopen,
    Resume,
    SpelledLogprobs,
    StepHandle,
    StepPlan,
    TextBatch,
    TokenBatch,
    TokenLogprob,
)

TOLERANCE = 1e-3
"""Within which the figures of two devices are the same: probabilities (their logarithms), embeddings."""
_TIMES = ("_ns", "_s")
_WAYS = (StepPlan, DiskMoves, Reopen, DeviceReady, DeviceLost, DiskMoved, Pause, Resume)
"""How the device is used, what it can hold, who waits for whom: not what a request is answered."""


class Key(NamedTuple):
    what: str
    """For a reader: `text`, `token ids`, the name of a message type, ..."""
    request_id: int | None = None


Fact = tuple[Key, list[Any] | int]


@dataclass(frozen=True)
class Equivalence:
    """See the module. One of your own needs no more than a function."""

    what: str
    """What must be alike, in words."""
    facts: Callable[[object], Iterable[Fact]]
    """Of one message that the stage has given; must be a pure function of it."""


class Ended(NamedTuple):
    """The last item of a request's text or tokens."""

    finish_reason: FinishReason


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


# What a sink is given, as messages -----------------------------------------------------------------


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


# Whole messages ------------------------------------------------------------------------------------


def whole_messages(message: object) -> Iterator[Fact]:
    """The messages of each type, in their order."""
    yield Key(_name(message)), [plain(message)]


def plain(value: object) -> Any:
    """A message or a part of one as dicts, lists and plain values, without times."""
    if isinstance(value, (str, int, bytes, type(None))):
        return value
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, msgspec.Struct) and not _is_step(value):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__ if not is_time(name)}
    if isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        parts = [plain(each) for each in value]
        return parts if names is None else dict(zip(names, parts, strict=True))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, RequestError):
        return {name: plain(each) for name, each in vars(value).items() if not is_time(name)}
    if _is_step(value):
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


def _is_step(value: object) -> bool:
    return hasattr(value, "token_ids_sync")  # a Protocol without a cheap isinstance


def _name(message: object) -> str:
    return StepHandle.__name__ if _is_step(message) else type(message).__name__


# By request ----------------------------------------------------------------------------------------


def by_request(message: object) -> Iterable[Fact]:
    """What each request is answered, however it is spread over messages; other messages as they are."""
    if isinstance(message, TextBatch):
        return _of_texts(message)
    if isinstance(message, TokenBatch):
        return _of_tokens(message)
    if isinstance(message, SinkCall):
        return _of_sink(message)
    if _is_step(message):
        return _of_step(message)
    if isinstance(message, _WAYS):
        return ()
    return [(Key(_name(message), getattr(message, "request_id", None)), [plain(message)])]


def _of_texts(step: TextBatch) -> Iterator[Fact]:
    for request_id, text, num_tokens, finish in zip(
        step.request_ids, step.texts, step.num_tokens, step.finish_reasons, strict=True
    ):
        yield Key("text", request_id), [*text, *_ending(finish)]
        yield Key("output tokens", request_id), num_tokens
    for started in step.started:
        yield Key("Started", started.request_id), [plain(started)]
    for times in step.times:
        yield Key("SequenceTimes", times.request_id), [plain(times)]
    for request_id, embedding in step.embeddings.items():
        yield Key("embedding", request_id), [embedding]
    if step.logprobs is not None:
        yield from _of_spelled(step.logprobs, "logprobs")
    if step.scores is not None:
        yield from _of_spelled(step.scores, "scores")


def _of_spelled(told: SpelledLogprobs, what: str) -> Iterator[Fact]:
    for request_id, entry in zip(told.request_ids, told.entries, strict=True):
        yield Key(what, request_id), [plain(entry)]


def _of_tokens(step: TokenBatch) -> Iterator[Fact]:
    """Of `started`, what the client has asked for; how often it was preempted, what was cached: ways."""
    for request_id, token_id, finish in zip(
        step.request_ids, step.token_ids, step.finish_reasons, strict=True
    ):
        yield Key("token ids", request_id), [*_token(token_id), *_ending(finish)]
    for started in step.started:
        told = plain(started)
        del told["num_cached_tokens"]
        yield Key("Started", started.request_id), [told]
    for request_id, embedding in step.embeddings.items():
        yield Key("embedding", request_id), _floats(embedding)
    if step.logprobs is not None:
        yield from _of_logprobs(step.logprobs, "logprobs")
    if step.scores is not None:
        yield from _of_logprobs(step.scores, "scores")


def _of_step(step: Any) -> Iterator[Fact]:
    plan: StepPlan = step.plan
    asked = [each for each, samples in zip(plan.request_ids, plan.samples, strict=True) if samples]
    for request_id, token_id in zip(asked, step.token_ids_sync(), strict=True):
        yield Key("token ids", request_id), [token_id]
    for question, columns in zip(plan.questions, step.drops_sync(), strict=True):
        yield Key("dropped columns", plan.request_ids[question.row]), [list(columns)]
    for row, embedding in zip(plan.pooled, step.embeddings_sync(), strict=True):
        yield Key("embedding", plan.request_ids[row]), _floats(embedding)
    for what, told in (("logprobs", step.logprobs_sync()), ("scores", step.scores_sync())):
        if told is not None:
            yield from _of_logprobs(told, what)


def _of_logprobs(told: Logprobs, what: str) -> Iterator[Fact]:
    for request_id, token_id, value, top_ids, top_values in zip(
        told.request_ids, told.token_ids, told.values, told.top_ids, told.top_values, strict=True
    ):
        yield (
            Key(what, request_id),
            [[token_id, About(value), list(top_ids), [*map(About, top_values)]]],
        )


def _of_sink(call: SinkCall) -> Iterator[Fact]:
    request_id = call.request_id
    if isinstance(call, Written):
        yield Key("text", request_id), [*call.text]
        yield Key("output tokens", request_id), call.num_tokens
    elif isinstance(call, Spelled):
        yield Key("logprobs", request_id), [plain(entry) for entry in call.entries]
    elif isinstance(call, Done):
        yield Key("text", request_id), [Ended(call.completion.finish_reason)]
        yield Key("completion", request_id), [plain(call.completion)]
    elif isinstance(call, Failed):
        yield Key("text", request_id), [Ended(FinishReason.ERROR)]
        yield Key("error", request_id), [plain(call.error)]


def _token(token_id: int) -> list[int]:
    return [] if token_id == NO_TOKEN else [token_id]


def _ending(finish: int) -> list[Ended]:
    return [Ended(FinishReason(finish))] if finish else []


def _floats(embedding: bytes) -> list[About]:
    return [About(value) for value in array("f", embedding)]


MESSAGES = Equivalence("the messages of each type, one by one, in all fields but times", whole_messages)
BY_REQUEST = Equivalence(
    "what each request is answered: tokens, text (joined), counts, how it ends, in this order", by_request
)
