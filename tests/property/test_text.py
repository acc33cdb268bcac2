"""The text side under hypothesis: text does not depend on how it is cut; nothing is lost or said twice."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.checkpoint.fake import byte_card
from pipeline.core.chat import ChatTemplate
from pipeline.core.detok import Detokenizer, Vocabulary
from pipeline.core.prompts import PromptEncoder
from pipeline.core.stops import StopMatcher
from pipeline.errors import RequestError
from pipeline.messages import (
    NO_TOKEN,
    Cancel,
    ChatMessage,
    Completion,
    FinishReason,
    Open,
    Started,
    TextBatch,
    TokenBatch,
)
from pipeline.runtime.stage import NoOptions
from pipeline.runtime.testing import ManualClock
from pipeline.stages.detokenize import Detokenize
from pipeline.stages.stream import Stream, StreamOptions
from tests.text_world import Sink, World, byte_fallback_tokenizer, tokens
from tests.tiny_models import byte_level_tokenizer

BYTES = byte_card().new_tokenizer()
BYTE_LEVEL = byte_level_tokenizer()
FALLBACK = byte_fallback_tokenizer()
VOCABULARIES = {
    id(tokenizer): Vocabulary(tokenizer, tokenizer.get_vocab_size())
    for tokenizer in (BYTES, BYTE_LEVEL, FALLBACK)
}


def pieces(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(VOCABULARIES[id(tokenizer)])
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


# Detokenizing ----------------------------------------------------------------------------------------


@settings(max_examples=500)
@given(st.lists(st.integers(0, BYTES.get_vocab_size() - 1)))
def test_any_bytes_decode_as_they_do_at_once(token_ids: list[int]) -> None:
    assert "".join(pieces(BYTES, token_ids)) == BYTES.decode(token_ids)


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1)))
def test_any_byte_level_tokens_decode_as_they_do_at_once(token_ids: list[int]) -> None:
    assert "".join(pieces(BYTE_LEVEL, token_ids)) == BYTE_LEVEL.decode(token_ids)


@given(st.text())
def test_any_text_comes_back_from_byte_fallback(text: str) -> None:
    token_ids = FALLBACK.encode(text).ids
    assert "".join(pieces(FALLBACK, token_ids)) == FALLBACK.decode(token_ids)


WHOLE = [
    token_id
    for token, token_id in FALLBACK.get_vocab().items()
    if not token.startswith("<0x") or int(token[3:5], 16) < 0x80
]


@given(st.lists(st.sampled_from(WHOLE)))
def test_any_whole_tokens_decode_as_they_do_at_once(token_ids: list[int]) -> None:
    """Leading spaces and special tokens included."""
    assert "".join(pieces(FALLBACK, token_ids)) == FALLBACK.decode(token_ids)


@given(st.lists(st.integers(0, FALLBACK.get_vocab_size() - 1)))
def test_no_tokens_raise(token_ids: list[int]) -> None:
    pieces(FALLBACK, token_ids)


@given(st.text(st.characters(blacklist_characters="\ufffd", blacklist_categories=["Cs"])))
def test_no_piece_ends_inside_a_character(text: str) -> None:
    assert "\ufffd" not in "".join(pieces(BYTES, list(text.encode())))
    assert all(piece == "" or len(piece) == 1 for piece in pieces(BYTES, list(text.encode())))


# Stop strings ----------------------------------------------------------------------------------------


def stopped(stops: list[str], parts: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    shown = ""
    for part in parts:
        shown += matcher.push(part)
        if matcher.is_stopped:
            return shown, True
    return shown + matcher.flush(), False


def cut(text: str, at: list[int]) -> list[str]:
    places = sorted({min(place, len(text)) for place in at} | {0, len(text)})
    return [text[begin:end] for begin, end in pairwise(places)]


few = st.text("ab", min_size=1, max_size=4)


@settings(max_examples=500)
@given(st.text("abc", max_size=20), st.lists(few, min_size=1, max_size=3), st.lists(st.integers(0, 20)))
def test_the_cuts_do_not_matter_to_stop_strings(text: str, stops: list[str], at: list[int]) -> None:
    ends = [begin + len(stop) for stop in stops if (begin := text.find(stop)) >= 0]
    expected = text
    if ends:
        expected = min((text[: min(ends) - len(s)] for s in stops if text[: min(ends)].endswith(s)), key=len)
    assert stopped(stops, cut(text, at)) == (expected, bool(ends))


@given(st.text("abc", max_size=20), st.lists(few, min_size=1, max_size=3))
def test_no_more_is_held_than_may_begin_a_stop_string(text: str, stops: list[str]) -> None:
    matcher, taken, shown = StopMatcher(stops), "", ""
    for char in text:
        taken += char
        shown += matcher.push(char)
        if matcher.is_stopped:
            return
        held = taken[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        longer = [taken[at:] for at in range(len(shown))]
        assert not any(stop.startswith(end) for stop in stops for end in longer)


# Prompts ---------------------------------------------------------------------------------------------

TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}<|over|>", {}, str, 1 << 20)
ENCODER = PromptEncoder(byte_card().new_tokenizer())
evil = st.lists(st.sampled_from(["<|over|>", "<|", "over", "|>", "<", ">", "|", " ", "a", "é", "<|turn|>"]))


@settings(max_examples=500)
@given(st.lists(evil.map("".join), min_size=1, max_size=4))
def test_no_text_becomes_a_control_token(contents: list[str]) -> None:
    messages = [ChatMessage("user", content) for content in contents]
    (encoding,) = ENCODER.encode([ENCODER.render(TEMPLATE, messages)], is_rendered=True)
    assert ENCODER.ids_of(encoding, is_rendered=True) == [*"".join(contents).encode(), 258]


# The two stages --------------------------------------------------------------------------------------


class Life(msgspec.Struct, frozen=True):
    """One request: what is sampled for it, and how it ends."""

    text: bytes
    reason: FinishReason
    stop: tuple[str, ...]
    begins: int
    """The step of its first row."""


lives = st.builds(
    Life,
    st.text("ab#é漢", min_size=1, max_size=12).map(str.encode),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED]),
    st.sampled_from([(), ("#",), ("ab#", "é")]),
    st.integers(0, 5),
)


def steps_of(requests: list[Life]) -> list[TokenBatch]:
    """The batches a scheduler would send: a token per step each, then its terminal row."""
    last = max(life.begins + len(life.text) for life in requests)
    return [_step(requests, step) for step in range(last + 1)]


def _step(requests: list[Life], step: int) -> TokenBatch:
    rows, started = [], []
    for request_id, life in enumerate(requests):
        index = step - life.begins
        if index == 0:
            started.append(Started(request_id, 1, life.stop))
        if 0 <= index < len(life.text):
            is_last = index == len(life.text) - 1 and life.reason is FinishReason.LENGTH
            rows.append((request_id, life.text[index], life.reason if is_last else FinishReason.NONE))
        elif index == len(life.text) and life.reason is not FinishReason.LENGTH:
            token_id = 256 if life.reason is FinishReason.STOP else NO_TOKEN
            rows.append((request_id, token_id, life.reason))
    return tokens(*rows, started=tuple(started), step_id=step)


async def answer(requests: list[Life], gaps_ms: list[int]) -> tuple[list[Sink], list[Cancel]]:
    clock = ManualClock()
    detokenize = World(Detokenize, NoOptions())
    stream = World(Stream, StreamOptions(flush_tokens=3), clock=clock)
    await detokenize.stage.start()
    sinks = [Sink() for _ in requests]
    await stream.stage.handle([Open(request_id, sink, 0) for request_id, sink in enumerate(sinks)])
    for index, batch in enumerate(steps_of(requests)):
        await detokenize.stage.handle([batch])
        clock.advance(gaps_ms[index % len(gaps_ms)] * 1_000_000)
        await stream.stage.handle(await detokenize.sent(TextBatch))
    assert (detokenize.stage.num_live, stream.stage.num_live) == (0, 0)
    cancels = await detokenize.sent(Cancel)
    await stream.stage.stop()
    return sinks, cancels


def expected(life: Life) -> tuple[str, FinishReason, int]:
    """Text, finish reason and tokens, worked out at once."""
    for num_bytes in range(1, len(life.text) + 1):
        text, is_stopped = (
            stopped(list(life.stop), [life.text[:num_bytes].decode(errors="ignore")])
            if life.stop
            else ("", False)
        )
        if is_stopped:
            return text, FinishReason.STOP, num_bytes
    return life.text.decode(), life.reason, len(life.text) + (life.reason is FinishReason.STOP)


@given(st.lists(lives, min_size=1, max_size=5), st.lists(st.sampled_from([0, 5, 30]), min_size=1, max_size=4))
def test_each_request_gets_its_text_its_count_and_one_ending(
    requests: list[Life], gaps_ms: list[int]
) -> None:
    sinks, cancels = asyncio.run(answer(requests, gaps_ms))
    for request_id, (life, sink) in enumerate(zip(requests, sinks, strict=True)):
        text, reason, num_tokens = expected(life)
        assert not isinstance(sink.ending, RequestError)
        completion: Completion = sink.completion
        assert (sink.text, completion.finish_reason, completion.num_output_tokens) == (
            text,
            reason,
            num_tokens,
        )
        assert sum(count for _, count in sink.deltas) <= num_tokens
        in_text = reason is FinishReason.STOP and life.reason is not FinishReason.STOP
        assert not in_text or Cancel(request_id, FinishReason.STOP) in cancels or num_tokens == len(life.text)
    assert len({cancel.request_id for cancel in cancels}) == len(cancels)
