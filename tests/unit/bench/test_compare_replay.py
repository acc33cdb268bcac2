"""Both sides on a recording of what a stage has taken."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.assemble import StageClass
from pipeline.bench.compare.answers import compare_answers
from pipeline.bench.compare.input import Input, of_recording
from pipeline.bench.compare.rounds import Timing, time_rounds
from pipeline.bench.feeds import feed_for
from pipeline.bench.samples import STOP, Load
from pipeline.bench.stand import running
from pipeline.checkpoint.card import ModelCard
from pipeline.errors import StagelineError
from pipeline.messages import TextBatch
from pipeline.messages.recorded import decode, encode, kind_of
from pipeline.runtime.inbox import Taken
from pipeline.runtime.recording import Entry, Header, Recording
from tests.unit.bench import spoiled as by
from tests.unit.bench.sides import CONFIG, STAGES, built_in, side

GRAPH = CONFIG.graph
pytestmark = pytest.mark.usefixtures("little_garbage")


def recorded(stage: str, card: ModelCard) -> Recording:
    """What the stage takes of some requests, from the first to the last."""
    load = replace(Load.of(card, 6), num_tokens=24, num_sequences=16, stop=STOP)
    entries: list[Entry] = []

    def note(taken: Taken[Any]) -> None:
        batch = entries[-1].batch + 1 if entries else 0
        for number, (message, sent_ns) in enumerate(zip(taken.messages, taken.sent_ns, strict=True)):
            copy = decode(kind_of(message), encode(message))
            entries.append(Entry(sent_ns, taken.taken_ns, number < taken.num_control, batch, copy))

    async def main() -> None:
        stand, feed = side("a", stage, card).stand(trace_points=1), feed_for(stage, load, GRAPH)
        stand.inbox.taps = (note,)
        async with running(stand, feed):
            await feed.send(stand, 1 << 30)

    asyncio.run(main())
    header = Header(
        schema=1,
        stage=stage,
        links=(),
        use="",
        options={},
        model="fake",
        is_redacted=False,
        begun_at="",
        begin_ns=0,
        stageline="",
    )
    return Recording(header, entries, None)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_equivalent_to_itself_and_timed(stage: str, fake_card: ModelCard) -> None:
    a, b = side("a", stage, fake_card), side("b", stage, fake_card)
    fed = of_recording(stage, GRAPH, recorded(stage, fake_card))
    assert fed.num_messages
    answers = asyncio.run(compare_answers(a, b, fed))
    assert answers.are_alike, answers
    assert answers.messages_a >= 16
    times = asyncio.run(time_rounds(a, b, fed, Timing(6, 200)))
    assert times.rounds == 6
    assert times.messages <= 200
    assert times.ratio.low <= times.ratio.value <= times.ratio.high


def test_a_wrong_copy_is_caught(fake_card: ModelCard, candidate: Callable[[StageClass], str]) -> None:
    recording = recorded("detokenize", fake_card)
    wrong = candidate(by.spoiled(built_in("detokenize"), TextBatch, by.loses_a_character))
    a, b = side("a", "detokenize", fake_card), side("b", "detokenize", fake_card, wrong)
    answers = asyncio.run(compare_answers(a, b, of_recording("detokenize", GRAPH, recording)))
    (found,) = answers.differences
    assert (found.what, found.position) == ("text", 0)


def test_a_recording_of_another_stage(fake_card: ModelCard) -> None:
    with pytest.raises(StagelineError, match="holds TokenBatch, which no link leads to sample"):
        of_recording("sample", GRAPH, recorded("detokenize", fake_card))


def test_a_recording_that_is_too_short(fake_card: ModelCard) -> None:
    recording = recorded("sample", fake_card)
    short = of_recording("sample", GRAPH, recording._replace(entries=recording.entries[:6]))
    a, b = side("a", "sample", fake_card), side("b", "sample", fake_card)
    with pytest.raises(StagelineError, match="6 messages are too few for 7 rounds, warm-up included"):
        asyncio.run(time_rounds(a, b, short, Timing(6, 10)))
    assert Input(lambda: None, lambda: None, 70).part(20, 7) == 10  # type: ignore[arg-type, return-value]
