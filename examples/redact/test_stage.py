"""Redact alone, between a source and a sink."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from examples.redact.stage import Redact, RedactOptions
from pipeline.messages import FinishReason, TextBatch
from pipeline.stage_api import Inbox, StageContext
from pipeline.stage_api.testing import Collect, run_alone, sample_messages

DEFAULTS = RedactOptions()
TEXT = "Ask ann.lee@lab.example or bob@x.org, not @home; tel. 12-34."
REDACTED = "Ask [removed] or [removed], not @home; tel. 12-34."
(SAMPLE,) = sample_messages(TextBatch, 1)


def step(*rows: tuple[int, str, FinishReason]) -> TextBatch:
    ids, texts, reasons = ([row[column] for row in rows] for column in range(3))
    return replace(
        SAMPLE, request_ids=ids, texts=texts, num_tokens=[1] * len(rows), finish_reasons=reasons, started=[]
    )


def script(text: str, size: int) -> list[TextBatch]:
    """A request's text in pieces of this size, beside one that says something else."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    steps = [step((1, piece, FinishReason.NONE), (2, "la", FinishReason.NONE)) for piece in pieces]
    return [*steps, step((1, "", FinishReason.STOP), (2, "", FinishReason.LENGTH))]


def texts(
    messages: Sequence[TextBatch], options: RedactOptions = DEFAULTS, swap_after: int | None = None
) -> dict[int, str]:
    """What each request's client reads."""
    gave = asyncio.run(run_alone(Redact, options, messages, swap_after=swap_after))[TextBatch]
    read: dict[int, str] = {}
    for each in gave:
        for request_id, text in zip(each.request_ids, each.texts, strict=True):
            read[request_id] = read.get(request_id, "") + text
    return read


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(TEXT)])
def test_the_same_however_the_text_is_cut(size: int) -> None:
    messages = script(TEXT, size)
    assert texts(messages) == {1: REDACTED, 2: "la" * (len(messages) - 1)}


def test_only_what_may_be_part_of_a_match_is_held_back() -> None:
    (first, *_) = asyncio.run(run_alone(Redact, DEFAULTS, script("to bob@x.org", 8)))[TextBatch]
    assert first.texts[0] == "to "


@pytest.mark.parametrize("swap_after", range(0, 24, 3))
def test_another_can_take_its_place_in_the_middle_of_a_word(swap_after: int) -> None:
    assert texts(script(TEXT, 3), swap_after=swap_after)[1] == REDACTED


def test_a_word_without_end_is_not_held_for_ever() -> None:
    assert texts(script("x" * 999, 5), RedactOptions(max_word=10))[1] == "x" * 999
    gave = asyncio.run(run_alone(Redact, RedactOptions(max_word=10), script("x" * 999, 5)[:-1]))[TextBatch]
    assert sum(len(each.texts[0]) for each in gave) > 980


def test_nothing_is_remembered_of_requests_that_ended() -> None:
    context = StageContext("filter", Inbox(1), {TextBatch: Collect()}, {})

    async def main() -> None:
        stage = Redact(context, DEFAULTS)
        *live, last = script(TEXT, 3)
        await stage.handle(live)
        assert stage.export_state().held == {1: "12-34.", 2: "la" * len(live)}
        await stage.handle([last])
        assert stage.export_state().held == {}

    asyncio.run(main())


def test_a_wrong_pattern_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="pattern '\\(': missing \\)"):
        msgspec.convert({"pattern": "("}, RedactOptions)
