"""Sample messages: one function per message type, so that any stage can be fed by the types it takes.

They look like those of a server under steady load: as many sequences as there are rows, each with real text
of some length, one ending and the next beginning every so often.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from pipeline.checkpoint.card import ModelCard
from pipeline.core.detok import Detokenizer, Vocabulary
from pipeline.messages import (
    NO_TOKEN,
    SEGMENTS,
    STEP_SEGMENTS,
    Admitted,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    SequenceTimes,
    Started,
    StepHandle,
    StepPlan,
    TextBatch,
    TokenBatch,
    TokenizedRequest,
)
from pipeline.runtime.testing import FakeHandle

TEXT = (
    "It was a bright cold day in April, and the clocks were striking thirteen - or so the café's owner said. "
    "“Naïve,” she replied: 3.14 is not π. def area(r): return 3.14159 * r ** 2  # m² "
    "春はあけぼの。やうやう白くなりゆく山ぎは、すこしあかりて。 Привет, мир! 🙂 "
)
STOP = ("said.", "return", "春")
"""Strings of TEXT, far enough apart that of many sequences some are stopped by one and some are not."""
BLOCK_SIZE = 16
_ELAPSED = (0,) * len(SEGMENTS[STEP_SEGMENTS])


class Load(msgspec.Struct, frozen=True):
    """What the messages are made of."""

    num_rows: int
    """Rows of a step."""
    token_ids: list[int]
    """Of TEXT."""
    pieces: list[str]
    """The text that each of `token_ids` adds."""
    num_tokens: int = 256
    """Output tokens of a sequence."""
    num_prompt_tokens: int = 64
    num_sequences: int = 1 << 62
    """No more are begun."""
    stop: tuple[str, ...] = ()
    """Of every third."""

    @classmethod
    def of(cls, card: ModelCard, num_rows: int) -> "Load":
        tokenizer = card.new_tokenizer()
        token_ids = list(tokenizer.encode(TEXT, add_special_tokens=False).ids)
        detokenizer = Detokenizer(Vocabulary(tokenizer, card.architecture.vocab_size))
        return cls(num_rows, token_ids, [detokenizer.push(token_id) for token_id in token_ids])

    def max_tokens(self, number: int) -> int:
        """Output tokens of sequence `number`: those that begin together end one after the other."""
        if number >= self.num_rows:
            return self.num_tokens
        return max(1, (number + 1) * self.num_tokens // self.num_rows)

    def stop_of(self, number: int) -> tuple[str, ...]:
        return () if number % 3 else self.stop


class Row(NamedTuple):
    """One sequence's part of one step."""

    request_id: int
    position: int
    """Output tokens of the sequence before this one."""
    is_last: bool


def steps(load: Load) -> Iterator[list[Row]]:
    """Steps of `load.num_rows` rows each. A sequence that ends is followed by a new one, while there are."""
    numbers = iter(range(load.num_sequences))
    live = [(number, 0) for number in islice(numbers, load.num_rows)]
    while live:
        yield [Row(number, position, position + 1 == load.max_tokens(number)) for number, position in live]
        live = list(_next_rows(load, live, numbers))


def _next_rows(load: Load, live: list[tuple[int, int]], numbers: Iterator[int]) -> Iterator[tuple[int, int]]:
    for number, position in live:
        if position + 1 < load.max_tokens(number):
            yield number, position + 1
        elif (begun := next(numbers, None)) is not None:
            yield begun, 0


# Per request ------------------------------------------------------------------------------------


def generate_request(load: Load, number: int, now_ns: int) -> GenerateRequest:
    """Prompts from a line to a page, every fourth one near a page."""
    size = (120, 350, 700, 1900)[number % 4]
    start = number * 31 % len(TEXT)
    prompt = (TEXT[start:] + TEXT * (size // len(TEXT) + 1))[:size]
    return GenerateRequest(number, prompt, None, _sampling(load, number), now_ns, now_ns)


def tokenized_request(load: Load, number: int, now_ns: int) -> TokenizedRequest:
    token_ids = [load.token_ids[i % len(load.token_ids)] for i in range(load.num_prompt_tokens)]
    return TokenizedRequest(number, token_ids, _sampling(load, number), now_ns, now_ns, (0, 0, 0))


# Per step ---------------------------------------------------------------------------------------


def step_plan(load: Load, step_id: int, rows: list[Row], now_ns: int) -> StepPlan:
    """A step of decode rows; a new sequence's blocks and a grown one's come with it."""
    first = [(slot, row) for slot, row in enumerate(rows) if row.position == 0]
    grown = [slot for slot, row in enumerate(rows) if row.position and row.position % BLOCK_SIZE == 0]
    return StepPlan(
        step_id=step_id,
        planned_ns=now_ns,
        request_ids=[row.request_id for row in rows],
        epochs=[0] * len(rows),
        slots=list(range(len(rows))),
        num_tokens=[1] * len(rows),
        num_computed=[load.num_prompt_tokens + row.position for row in rows],
        samples=[True] * len(rows),
        token_ids=[NO_TOKEN] * len(rows),
        admitted=[Admitted(slot, _sampling(load, row.request_id), row.request_id) for slot, row in first],
        block_slots=grown,
        block_cols=[0] * len(grown),
        block_ids=[0] * len(grown),
    )


def step_handle(load: Load, step_id: int, rows: list[Row], now_ns: int) -> StepHandle:
    """A step that the device has done."""
    plan = step_plan(load, step_id, rows, now_ns)
    return FakeHandle(plan, [_token(load, row) for row in rows], now_ns, now_ns)


def token_batch(load: Load, step_id: int, rows: list[Row], now_ns: int) -> TokenBatch:
    return TokenBatch(
        step_id=step_id,
        request_ids=[row.request_id for row in rows],
        token_ids=[_token(load, row) for row in rows],
        finish_reasons=_finish_reasons(rows),
        started=_started(load, rows),
        times=_times(rows),
        elapsed_ns=_ELAPSED,
        sent_ns=now_ns,
    )


def text_batch(load: Load, step_id: int, rows: list[Row], now_ns: int) -> TextBatch:
    return TextBatch(
        step_id=step_id,
        request_ids=[row.request_id for row in rows],
        texts=[load.pieces[place(load, row.request_id, row.position)] for row in rows],
        num_tokens=[1] * len(rows),
        finish_reasons=_finish_reasons(rows),
        started=_started(load, rows),
        times=_times(rows),
        elapsed_ns=_ELAPSED,
        token_sent_ns=now_ns,
        taken_ns=now_ns,
        sent_ns=now_ns,
    )


def _sampling(load: Load, number: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=load.max_tokens(number), seed=number, ignore_eos=True, stop=load.stop_of(number)
    )


def place(load: Load, request_id: int, position: int) -> int:
    """Which of `load.token_ids` is output there: by request, so that rows which are mixed up show."""
    return (request_id * 31 + position) % len(load.token_ids)


def _token(load: Load, row: Row) -> int:
    return load.token_ids[place(load, row.request_id, row.position)]


def _finish_reasons(rows: list[Row]) -> list[int]:
    return [FinishReason.LENGTH if row.is_last else FinishReason.NONE for row in rows]


def _started(load: Load, rows: list[Row]) -> list[Started]:
    return [
        Started(row.request_id, load.num_prompt_tokens, load.stop_of(row.request_id))
        for row in rows
        if row.position == 0
    ]


def _times(rows: list[Row]) -> list[SequenceTimes]:
    base_ns = (0,) * len(SEGMENTS)
    return [SequenceTimes(row.request_id, base_ns) for row in rows if row.position == 0 or row.is_last]
