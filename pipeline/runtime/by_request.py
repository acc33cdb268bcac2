"""By request: what each request is answered, however that is spread over messages."""

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.messages import (
    NO_TOKEN,
    DeviceLost,
    DeviceReady,
    DiskMoved,
    DiskMoves,
    FinishReason,
    Logprobs,
    Pause,
    Reopen,
    Resume,
    SpelledLogprobs,
    StepPlan,
    TextBatch,
    TokenBatch,
)
from pipeline.runtime.facts import (
    About,
    Done,
    Ended,
    Fact,
    Failed,
    Key,
    Replied,
    SinkCall,
    Spelled,
    Written,
    is_step,
    name_of,
    plain,
)

_WAYS = (StepPlan, DiskMoves, Reopen, DeviceReady, DeviceLost, DiskMoved, Pause, Resume)
"""How the device is used, what it can hold, who waits for whom: not what a request is answered."""


def by_request(message: object) -> Iterable[Fact]:
    """What each request is answered, however it is spread over messages; other messages as they are."""
    if isinstance(message, TextBatch):
        return _of_texts(message)
    if isinstance(message, TokenBatch):
        return _of_tokens(message)
    if isinstance(message, SinkCall):
        return _of_sink(message)
    if is_step(message):
        return _of_step(message)
    if isinstance(message, Replied):  # of a pool, so in any order
        return [(Key(f"reply to {plain(message.call)}"), [plain(message.answer)])]
    if isinstance(message, _WAYS):
        return ()
    return [(Key(name_of(message), getattr(message, "request_id", None)), [plain(message)])]


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
