"""Redaction: messages without what clients said and were told, which cost about the same to handle.

Prompts and outputs - text, token ids, logprobs, images, embeddings - are replaced by prose of the same length
(messages.prose), names by aliases. Numbers, times, ids of requests and the shape of everything stay: docs/
recording.md says it field by field, and tests/unit/messages/test_redaction.py holds it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import pack
from typing import Any

import msgspec
from msgspec.structs import replace

from pipeline.messages import (
    NO_TOKEN,
    Admitted,
    ChatMessage,
    DiskMoves,
    GenerateRequest,
    Grammar,
    ImagePart,
    Logprobs,
    PooledRow,
    PromptImage,
    Rejected,
    SampledBatch,
    SamplingParams,
    SpelledLogprobs,
    Started,
    StepPlan,
    Terms,
    TextBatch,
    TokenBatch,
    TokenCall,
    TokenizedRequest,
    TokenLogprob,
    ToolCall,
)
from pipeline.messages.prose import Prose, prose
from pipeline.messages.reshaping import reshaped
from pipeline.messages.stand_ins import RecordedStep

_ANYTHING = {"json": "{}", "regex": r"(.|\n)*", "choice": "[]", "lark": "start: /(.|\\n)*/"}
"""Grammars that allow anything; of choices, see `_grammar`."""


_ROWS = [prose(length) for length in range(64)]
"""Of rows' texts: most are a few letters, and there are many."""


class Redactor:
    """What may be shown of messages, by a prose."""

    def __init__(self, prose: Prose) -> None:
        self._prose = prose
        self._changes: dict[type, Callable[[Any], msgspec.Struct]] = {
            DiskMoves: self._disk_moves,
            GenerateRequest: self._generate_request,
            RecordedStep: self._step,
            Rejected: self._rejected,
            SampledBatch: self._sampled_batch,
            StepPlan: self._plan,
            TextBatch: self._text_batch,
            TokenBatch: self._token_batch,
            TokenCall: self._token_call,
            TokenizedRequest: self._tokenized_request,
        }

    def redacted(self, message: Any) -> Any:
        """The message as it may be shown: itself where it holds nothing that anybody said."""
        change = self._changes.get(type(message))
        return message if change is None else change(message)

    # requests -------------------------------------------------------------------------------

    def _generate_request(self, request: GenerateRequest) -> GenerateRequest:
        return replace(
            request,
            prompt=self._prompt(request.prompt),
            chat=self._chat(request.chat),
            sampling=self._sampling(request.sampling),
            terms=self._terms(request.terms),
            tools=reshaped(request.tools, self._prose),
            images=tuple(map(self._image, request.images)),
        )

    def _token_call(self, call: TokenCall) -> TokenCall:
        return replace(
            call,
            prompt=self._prompt(call.prompt),
            chat=self._chat(call.chat),
            token_ids=self._prompt(call.token_ids),
        )

    def _tokenized_request(self, request: TokenizedRequest) -> TokenizedRequest:
        return replace(
            request,
            token_ids=self._prose.prompt(request.token_ids),
            sampling=self._sampling(request.sampling),
            terms=self._terms(request.terms),
            images=tuple(map(self._image, request.images)),
        )

    def _rejected(self, rejected: Rejected) -> Rejected:
        return replace(rejected, message=prose(len(rejected.message.encode())))

    def _prompt(self, prompt: Any) -> Any:
        if prompt is None:
            return None
        return self._prose.text(prompt) if isinstance(prompt, str) else self._prose.prompt(prompt)

    def _chat(self, chat: list[ChatMessage] | None) -> list[ChatMessage] | None:
        return None if chat is None else [self._chat_message(message) for message in chat]

    def _chat_message(self, message: ChatMessage) -> ChatMessage:
        return replace(
            message,
            content=self._prose.text(message.content),
            tool_calls=tuple(map(self._tool_call, message.tool_calls)),
            tool_call_id=self._prose.alias(message.tool_call_id),
            images=tuple(map(_image_part, message.images)),
        )

    def _tool_call(self, call: ToolCall) -> ToolCall:
        return ToolCall(
            self._prose.alias(call.id), self._prose.alias(call.name), reshaped(call.arguments, self._prose)
        )

    def _terms(self, terms: Terms) -> Terms:
        return replace(
            terms, tenant=self._prose.alias(terms.tenant), cache_salt=self._prose.alias(terms.cache_salt)
        )

    def _image(self, image: PromptImage) -> PromptImage:
        return replace(image, pixels=bytes(len(image.pixels)), digest=self._prose.alias_bytes(image.digest))

    # sampling -------------------------------------------------------------------------------

    def _sampling(self, sampling: SamplingParams) -> SamplingParams:
        """What stops or bans text must not be found in prose, or outputs would be others."""
        says_nothing = not (sampling.stop or sampling.bad_words or sampling.bad_token_ids)
        if says_nothing and not (sampling.allowed_token_ids or sampling.logit_bias or sampling.grammar):
            return sampling
        return replace(
            sampling,
            stop=_marks(sampling.stop),
            bad_words=_marks(sampling.bad_words),
            bad_token_ids=tuple(tuple(range(len(each))) for each in sampling.bad_token_ids),
            allowed_token_ids=tuple(range(len(sampling.allowed_token_ids))),
            logit_bias=tuple((token_id, bias) for token_id, (_, bias) in enumerate(sampling.logit_bias)),
            grammar=None if sampling.grammar is None else self._grammar(sampling.grammar),
        )

    def _grammar(self, grammar: Grammar) -> Grammar:
        text = _ANYTHING[grammar.kind]
        if grammar.kind == "choice":
            choices = msgspec.json.decode(grammar.text)
            text = msgspec.json.encode([self._prose.alias(str(choice)) for choice in choices]).decode()
        return Grammar(grammar.kind, text)

    def _started(self, started: list[Started]) -> list[Started]:
        alias = self._prose.alias
        return [replace(each, stop=_marks(each.stop), tenant=alias(each.tenant)) for each in started]

    def _logprobs(self, logprobs: Logprobs | None) -> Logprobs | None:
        if logprobs is None:
            return None
        output = self._prose.output
        return Logprobs(
            logprobs.request_ids,
            output(logprobs.token_ids, 0),
            [-1.0] * len(logprobs.values),
            [output(ids, at) for at, ids in enumerate(logprobs.top_ids)],
            [_falling(values) for values in logprobs.top_values],
        )

    # steps ----------------------------------------------------------------------------------

    def _plan(self, plan: StepPlan) -> StepPlan:
        """Most rows decode, come first, and have their token on the device still."""
        token_ids, output = plan.token_ids, self._prose.output
        on_device = token_ids[: token_ids.count(NO_TOKEN)]
        if on_device.count(NO_TOKEN) < len(on_device):
            on_device = []
        if len(on_device) == len(token_ids) and not (plan.admitted or plan.scored):
            return plan
        return replace(
            plan,
            token_ids=on_device + output(token_ids[len(on_device) :], plan.step_id),
            admitted=[self._admitted(each) for each in plan.admitted],
            scored=[replace(each, token_ids=output(each.token_ids, plan.step_id)) for each in plan.scored],
        )

    def _admitted(self, admitted: Admitted) -> Admitted:
        sampling = self._sampling(admitted.sampling)
        if sampling is admitted.sampling and not (admitted.token_ids or admitted.images):
            return admitted
        return replace(
            admitted,
            sampling=sampling,
            token_ids=self._prose.prompt(admitted.token_ids),
            images=tuple(map(self._image, admitted.images)),
        )

    def _step(self, step: RecordedStep) -> RecordedStep:
        return replace(
            step,
            plan=self._plan(step.plan),
            token_ids=self._prose.output(step.token_ids, step.plan.step_id),
            embeddings=[_unit(embedding) for embedding in step.embeddings],
            logprobs=self._logprobs(step.logprobs),
            scores=self._logprobs(step.scores),
        )

    def _sampled_batch(self, batch: SampledBatch) -> SampledBatch:
        return replace(
            batch,
            token_ids=self._prose.output(batch.token_ids, batch.step_id),
            logprobs=self._logprobs(batch.logprobs),
            scores=self._logprobs(batch.scores),
            pooled=[PooledRow(row.request_id, row.epoch, _unit(row.embedding)) for row in batch.pooled],
        )

    def _token_batch(self, batch: TokenBatch) -> TokenBatch:
        return replace(
            batch,
            token_ids=self._prose.rows(batch.token_ids, batch.finish_reasons, batch.step_id),
            started=self._started(batch.started),
            logprobs=self._logprobs(batch.logprobs),
            scores=self._logprobs(batch.scores),
            embeddings=_units(batch.embeddings),
        )

    def _text_batch(self, batch: TextBatch) -> TextBatch:
        return replace(
            batch,
            texts=_rows(batch.texts),
            started=self._started(batch.started),
            logprobs=_spelled(batch.logprobs),
            scores=_spelled(batch.scores),
            embeddings=_units(batch.embeddings),
        )

    def _disk_moves(self, moves: DiskMoves) -> DiskMoves:
        alias = self._prose.alias_bytes
        return DiskMoves(
            [
                move._replace(parent=alias(move.parent), tokens=alias(move.tokens), key=alias(move.key))
                for move in moves.moves
            ]
        )


def _marks(texts: Sequence[str]) -> tuple[str, ...]:
    """Of the same lengths, and not to be found in prose."""
    return tuple("#" * len(text.encode()) for text in texts)


def _image_part(part: ImagePart) -> ImagePart:
    """No image any more: the stage that reads images refuses it."""
    return replace(part, data="A" * len(part.data))


def _rows(texts: Sequence[str]) -> list[str]:
    if "".join(texts).isascii():
        with suppress(IndexError):  # one is long
            return [_ROWS[length] for length in map(len, texts)]
    return [_ROWS[len(text)] if text.isascii() and len(text) < 64 else _row(text) for text in texts]


def _row(text: str) -> str:
    return prose(len(text.encode()))


def _falling(values: Sequence[float]) -> list[float]:
    return [-1.0 - at for at in range(len(values))]


def _spelled(logprobs: SpelledLogprobs | None) -> SpelledLogprobs | None:
    if logprobs is None:
        return None
    entries = [
        TokenLogprob(
            _piece(entry.piece), -1.0, [(_piece(piece), -1.0 - at) for at, (piece, _) in enumerate(entry.top)]
        )
        for entry in logprobs.entries
    ]
    return SpelledLogprobs(logprobs.request_ids, entries)


def _piece(piece: bytes) -> bytes:
    return prose(len(piece)).encode()


def _unit(embedding: bytes) -> bytes:
    """A vector of length 1, as long."""
    return (pack("<f", 1.0) + bytes(len(embedding)))[: len(embedding)]


def _units(embeddings: dict[int, bytes]) -> dict[int, bytes]:
    return {request_id: _unit(embedding) for request_id, embedding in embeddings.items()}
