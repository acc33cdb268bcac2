"""Another detokenize, as somebody else would write one: it shares only messages and states with the built-in.

Slow and plain. It knows byte tokens, and no reasoning (`unstopped`).
"""

import codecs
from collections.abc import Sequence

from pipeline.checkpoint.fake import END_OF_TEXT, END_OF_TURN, TURN
from pipeline.core.text_state import DetokenizeState, TextState
from pipeline.messages import NO_TOKEN, Cancel, FinishReason, TextBatch, TokenBatch
from pipeline.runtime.stage import NoOptions, Stage, StageContext

NAMES = dict(enumerate((END_OF_TEXT, TURN, END_OF_TURN), 256))
STOP = FinishReason.STOP.value


class Text:
    """One request's."""

    def __init__(self, state: TextState) -> None:
        self.started = state.started
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.decoder.setstate((state.held_bytes, 0))
        self.held = state.held_text
        self.num_unwatched = state.num_unwatched
        self.is_stopped = False

    @property
    def state(self) -> TextState:
        held_bytes = bytes(self.decoder.getstate()[0])
        return TextState(self.started, held_bytes, True, self.num_unwatched, self.held)

    def add(self, token_id: int, *, is_last: bool = False) -> str:
        name = "" if self.started.skips_special else NAMES.get(token_id, "")
        data = bytes([token_id]) if 0 <= token_id < 256 else name.encode()
        text = self.decoder.decode(data, is_last)
        return self.watched(text) if self.started.stop else text

    def watched(self, text: str) -> str:
        if self.num_unwatched:
            self.num_unwatched -= 1
            return text
        text = self.held + text
        for end in range(1, len(text) + 1):
            found = [stop for stop in self.started.stop if text[:end].endswith(stop)]
            if found:
                self.is_stopped, self.held = True, ""
                return text[:end] if self.started.includes_stop else text[: end - max(map(len, found))]
        ends = (text[at:] for at in range(len(text)))
        self.held = next((end for end in ends if any(s.startswith(end) for s in self.started.stop)), "")
        return text[: len(text) - len(self.held)]


class NaiveDetokenize(Stage[TokenBatch, NoOptions]):
    takes = (TokenBatch,)
    gives = (TextBatch, Cancel)
    State = DetokenizeState
    is_revocable = True

    def __init__(self, ctx: StageContext, options: NoOptions) -> None:
        super().__init__(ctx, options)
        self.texts: dict[int, Text] = {}

    def export_state(self) -> DetokenizeState:
        return DetokenizeState(tuple(text.state for text in self.texts.values()))

    def import_state(self, state: DetokenizeState) -> None:
        self.texts = {each.started.request_id: Text(each) for each in state.texts}

    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        for step in batch:
            for started in step.started:
                self.texts[started.request_id] = Text(TextState.of(started))
            await self.ctx.outlet(TextBatch).send(self.said(step))

    def said(self, step: TokenBatch) -> TextBatch:
        rows = [
            self.row(*row)
            for row in zip(step.request_ids, step.token_ids, step.finish_reasons, strict=True)
            if row[0] in self.texts
        ]
        ids, texts, nums, reasons = ([row[column] for row in rows] for column in range(4))
        return TextBatch(
            step.step_id,
            ids,  # type: ignore[arg-type]
            texts,  # type: ignore[arg-type]
            nums,  # type: ignore[arg-type]
            reasons,  # type: ignore[arg-type]
            step.started,
            step.times,
            step.elapsed_ns,
            step.sent_ns,
            0,
            0,
        )

    def row(self, request_id: int, token_id: int, finish: int) -> tuple[int, str, int, int]:
        text, num_tokens = self.texts[request_id], int(token_id != NO_TOKEN)
        if not finish:
            said = text.add(token_id)
            if text.is_stopped:
                del self.texts[request_id]
                self.ctx.outlet(Cancel).post(Cancel(request_id, FinishReason.STOP))
            return request_id, said, num_tokens, STOP if text.is_stopped else finish
        del self.texts[request_id]
        is_shown = finish != STOP or text.started.includes_stop
        said = text.add(token_id if is_shown else NO_TOKEN, is_last=True)
        return request_id, said + text.held, num_tokens, STOP if text.is_stopped else finish
