"""Detokenize: TokenBatch -> TextBatch, row by row; finds stop strings and ends their requests.

The per-token hot path: a row costs a look-up, a table access and four appends; nothing is made for it.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import cast

from pipeline.checkpoint.card import ModelCard
from pipeline.core.detok import Detokenizer, Vocabulary
from pipeline.core.reasoning import ReasoningSplitter, ReasoningTags, ThoughtfulStopMatcher
from pipeline.core.stops import LateStopMatcher, StopMatcher
from pipeline.core.text_state import DetokenizeState, TextState
from pipeline.messages import (
    NO_TOKEN,
    Cancel,
    FinishReason,
    Logprobs,
    SpelledLogprobs,
    TextBatch,
    TokenBatch,
    TokenLogprob,
)
from pipeline.runtime.equivalence import BY_REQUEST
from pipeline.runtime.shelf import Shelf
from pipeline.runtime.stage import NoOptions, Stage, StageContext

STOP = FinishReason.STOP.value


class _Sequence:
    """One live request's text."""

    __slots__ = ("_detokenizer", "_started", "push", "stops")

    def __init__(self, vocabulary: Vocabulary, state: TextState) -> None:
        started = state.started
        self._started = started
        self._detokenizer = Detokenizer(
            vocabulary,
            skips_special=started.skips_special,
            held=state.held_bytes,
            has_text=state.has_text,
        )
        self.push = self._detokenizer.push
        self.stops = _matcher(state) if started.stop else None

    @property
    def state(self) -> TextState:
        text, stops = self._detokenizer, self.stops
        if stops is None:
            return TextState(self._started, text.held, text.has_text)
        reasoning = stops.reasoning if isinstance(stops, ThoughtfulStopMatcher) else None
        return TextState(self._started, text.held, text.has_text, stops.num_unwatched, stops.held, reasoning)

    def end(self, token_id: int, finish_reason: int) -> tuple[str, int]:
        """The last text and how it ends: a stop string may be in it. A stop token's text is shown only
        where that was asked."""
        is_shown = token_id != NO_TOKEN and (finish_reason != STOP or self._started.includes_stop)
        text = (self.push(token_id) if is_shown else "") + self._detokenizer.flush()
        if self.stops is None:
            return text, finish_reason
        text = self.stops.push(text)
        return text + self.stops.flush(), STOP if self.stops.is_stopped else finish_reason


def _matcher(state: TextState) -> StopMatcher | ThoughtfulStopMatcher:
    started = state.started
    stops = StopMatcher(started.stop, includes_stop=started.includes_stop, held=state.held_text)
    if state.num_unwatched:
        stops = LateStopMatcher(started.stop, state.num_unwatched, includes_stop=started.includes_stop)
    if started.unstopped is None:
        return stops
    return ThoughtfulStopMatcher(ReasoningSplitter(ReasoningTags(*started.unstopped), state.reasoning), stops)


class Detokenize(Stage[TokenBatch, NoOptions]):
    """Owns the text state of every live request, from its Started to its terminal row.

    A row of an unknown request is dropped: it was in flight when a stop string ended its request.
    """

    takes = (TokenBatch,)
    gives = (TextBatch, Cancel)
    State = DetokenizeState
    is_revocable = True
    equivalence = BY_REQUEST

    def __init__(self, ctx: StageContext, options: NoOptions) -> None:
        super().__init__(ctx, options)
        self._sequences: dict[int, _Sequence] = {}
        self._shelf = cast(Shelf, ctx.resources.get(Shelf) or Shelf())
        self._shared: Vocabulary | None = None
        self._vocabulary: Vocabulary

    async def start(self) -> None:
        card = self.ctx.resource(ModelCard)
        vocabulary = self._shelf.share(Vocabulary)
        if vocabulary is None:
            vocabulary = await asyncio.to_thread(
                lambda: Vocabulary(card.new_tokenizer(), card.architecture.vocab_size)
            )
            self._shelf.keep(vocabulary)
        self._vocabulary = self._shared = vocabulary

    async def stop(self) -> None:
        vocabulary, self._shared = self._shared, None
        self._shelf.leave(vocabulary)

    def export_state(self) -> DetokenizeState:
        return DetokenizeState(tuple(sequence.state for sequence in self._sequences.values()))

    def import_state(self, state: DetokenizeState) -> None:
        self._sequences = {text.started.request_id: _Sequence(self._vocabulary, text) for text in state.texts}

    @property
    def num_live(self) -> int:
        """Requests with text state; 0 when idle."""
        return len(self._sequences)

    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        taken_ns = self.ctx.clock()
        texts = self.ctx.outlet(TextBatch)
        for step in batch:
            await texts.send(self._to_text(step, taken_ns))

    def _to_text(self, step: TokenBatch, taken_ns: int) -> TextBatch:
        sequences = self._sequences
        for started in step.started:
            sequences[started.request_id] = _Sequence(self._vocabulary, TextState.of(started))
        scores = None if step.scores is None else self._spelled_scores(step.scores)
        request_ids: list[int] = []
        texts: list[str] = []
        num_tokens: list[int] = []
        finish_reasons: list[int] = []
        for request_id, token_id, finish in zip(
            step.request_ids, step.token_ids, step.finish_reasons, strict=True
        ):
            sequence = sequences.get(request_id)
            if sequence is None:
                continue
            if finish:
                text, finish = sequence.end(token_id, finish)
                del sequences[request_id]
            else:
                text = sequence.push(token_id)
                if sequence.stops is not None:
                    text = sequence.stops.push(text)
                    if sequence.stops.is_stopped:
                        finish = self._stop(request_id)
            request_ids.append(request_id)
            texts.append(text)
            num_tokens.append(1 if token_id != NO_TOKEN else 0)
            finish_reasons.append(finish)
        return TextBatch(
            step.step_id,
            request_ids,
            texts,
            num_tokens,
            finish_reasons,
            step.started,
            step.times,
            step.elapsed_ns,
            step.sent_ns,
            taken_ns,
            self.ctx.clock(),
            None if step.logprobs is None else self._spelled(step.logprobs, request_ids, num_tokens),
            step.embeddings,
            scores,
        )

    def _spelled(self, told: Logprobs, request_ids: list[int], num_tokens: list[int]) -> SpelledLogprobs:
        """Those of the tokens that are passed on, in their order."""
        waiting: dict[int, deque[TokenLogprob]] = {}
        for request_id, entry in zip(told.request_ids, self._entries(told), strict=True):
            waiting.setdefault(request_id, deque()).append(entry)
        asked = [each for each, num in zip(request_ids, num_tokens, strict=True) if num and each in waiting]
        return SpelledLogprobs(asked, [waiting[each].popleft() for each in asked])

    def _spelled_scores(self, told: Logprobs) -> SpelledLogprobs:
        """Those of live requests."""
        live = [each in self._sequences for each in told.request_ids]
        return SpelledLogprobs(
            list(compress(told.request_ids, live)), list(compress(self._entries(told), live))
        )

    def _entries(self, told: Logprobs) -> Iterator[TokenLogprob]:
        spell = self._vocabulary.spell
        for token_id, value, top_ids, top_values in zip(
            told.token_ids, told.values, told.top_ids, told.top_values, strict=True
        ):
            yield TokenLogprob(
                spell(token_id), value, list(zip(map(spell, top_ids), top_values, strict=True))
            )

    def _stop(self, request_id: int) -> int:
        """A stop string is complete: end the request here and tell the scheduler."""
        del self._sequences[request_id]
        self.ctx.outlet(Cancel).post(Cancel(request_id, FinishReason.STOP))
        return STOP
