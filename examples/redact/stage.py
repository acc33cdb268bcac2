"""Redact: what a pattern matches does not reach the clients. Stands between detokenize and stream.

Text comes in pieces, and a match may be cut in two. So a word is held back until it is whole: what is sent on
is the same however the text is cut.
"""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from pipeline.messages import TextBatch
from pipeline.stage_api import BY_REQUEST, Stage, StageContext


class RedactOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str = r"[\w.+-]+@[\w-]+(\.[\w-]+)+"
    """A regular expression (Python's `re`), looked for in each word by itself; default: mail addresses."""
    replacement: str = "[removed]"
    max_word: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 256
    """Characters held back at most; a longer word is looked at in parts."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern {self.pattern!r}: {error}") from error


class RedactState(msgspec.Struct):
    """What another Redact needs to go on."""

    held: dict[int, str] = {}
    """By request: the word that is not whole yet."""


class Redact(Stage[TextBatch, RedactOptions]):
    """Owns the last word of every live request, from its first piece to its terminal row."""

    api = 1
    Options = RedactOptions
    takes = (TextBatch,)
    gives = (TextBatch,)
    equivalence = BY_REQUEST
    State = RedactState
    is_revocable = True

    def __init__(self, ctx: StageContext, options: RedactOptions) -> None:
        super().__init__(ctx, options)
        self._pattern = re.compile(options.pattern)
        self._held: dict[int, str] = {}

    def export_state(self) -> RedactState:
        return RedactState(self._held.copy())

    def import_state(self, state: RedactState) -> None:
        self._held = state.held.copy()

    async def handle(self, batch: Sequence[TextBatch]) -> None:
        for step in batch:
            rows = zip(step.request_ids, step.texts, step.finish_reasons, strict=True)
            texts = [self._passed(*row) for row in rows]
            await self.ctx.outlet(TextBatch).send(replace(step, texts=texts))

    def _passed(self, request_id: int, text: str, finish: int) -> str:
        """What may leave of a request's text."""
        text = self._held.pop(request_id, "") + text
        end = len(text) if finish else _end_of_words(text)
        if len(text) - end > self.options.max_word:
            end = len(text)
        if end < len(text):
            self._held[request_id] = text[end:]
        return self._pattern.sub(self.options.replacement, text[:end])


def _end_of_words(text: str) -> int:
    """Where the last word begins, which may go on."""
    return max(text.rfind(space) for space in " \n\t") + 1
