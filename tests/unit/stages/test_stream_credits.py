"""A client that grants tokens gets no more than that, and loses none."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pipeline.errors import RequestError
from pipeline.messages import (
    Cancel,
    FinishReason,
    Grant,
    Open,
    Pause,
    Resume,
    SpelledLogprobs,
    TokenLogprob,
)
from tests.text_world import Sink
from tests.unit.stages.stream_world import MS, StreamWorld

NONE, STOP, LENGTH, CANCELLED, ERROR, _ = FinishReason


def in_world(body: Callable[[StreamWorld], Awaitable[None]], credits: int | None = 2, **options: Any) -> None:
    opened: dict[str, Any] = {"credits": credits}
    for name in ("flush_tokens", "flush_ms"):
        if f"asked_{name}" in options:
            opened[name] = options.pop(f"asked_{name}")

    async def main() -> None:
        world = StreamWorld(**options)
        await world.stage.handle([Open(1, world.sink, world.clock.now_ns, **opened)])
        await body(world)
        await world.stage.stop()

    asyncio.run(main())


async def grant(world: StreamWorld, num_tokens: int) -> None:
    await world.stage.handle([Grant(1, num_tokens)])


async def say(world: StreamWorld, text: str, finish: FinishReason = NONE) -> None:
    """A token a row, one a step."""
    for at, each in enumerate(text):
        await world.rows((1, each, 1, finish if at == len(text) - 1 else NONE))


def test_at_zero_it_is_paused_and_what_was_sampled_is_held() -> None:
    async def body(world: StreamWorld) -> None:
        await say(world, "abcd")
        assert world.sink.text == "ab", "the last on credit goes out at once"
        assert await world.sent(Pause) == [Pause(1)] and await world.sent(Resume) == []
        await grant(world, 1)
        assert world.sink.deltas[-1] == ("c", 1)
        assert await world.sent(Resume) == [], "its credit is spent again by what was held"
        await grant(world, 3)
        assert world.sink.deltas[-1] == ("d", 1)
        assert await world.sent(Resume) == [Resume(1)]
        await say(world, "efg")
        assert world.sink.text == "abcdef"
        assert await world.sent(Pause) == [Pause(1)]
        await grant(world, 10)
        await say(world, "h", STOP)
        assert world.sink.text == "abcdefgh" and world.sink.completion.num_output_tokens == 8
        assert world.stage.num_live == 0

    in_world(body)


def test_an_ending_waits_for_the_text_before_it() -> None:
    async def body(world: StreamWorld) -> None:
        await say(world, "abcd", LENGTH)
        assert world.sink.text == "ab" and not world.sink.endings
        await grant(world, 1)
        assert world.sink.text == "abc" and not world.sink.endings
        await grant(world, 1)
        assert world.sink.text == "abcd" and world.sink.completion.finish_reason is LENGTH

    in_world(body)


def test_an_ending_without_text_needs_no_credit() -> None:
    async def body(world: StreamWorld) -> None:
        await say(world, "ab")
        await world.rows((1, "", 0, STOP))
        assert world.sink.completion.finish_reason is STOP

    in_world(body)


@pytest.mark.parametrize("reason", [CANCELLED, ERROR])
def test_who_cancels_is_told_nothing_more(reason: FinishReason) -> None:
    async def body(world: StreamWorld) -> None:
        await say(world, "abcd")
        await world.rows((1, "", 0, reason))
        assert world.sink.text == "ab"
        if reason is CANCELLED:
            assert world.sink.completion.num_output_tokens == 4
        else:
            assert isinstance(world.sink.ending, RequestError)

    in_world(body)


def test_logprobs_come_with_the_tokens_that_were_granted() -> None:
    told: list[bytes] = []

    class Told:
        def logprobs(self, entries: list[TokenLogprob]) -> None:
            told.extend(entry.piece for entry in entries)

    async def main() -> None:
        world = StreamWorld()
        await world.stage.handle([Open(1, world.sink, 0, credits=2, logprobs_sink=Told())])
        for piece in "abcd":
            entry = TokenLogprob(piece.encode(), -1.0, [])
            await world.rows((1, piece, 1, NONE), logprobs=SpelledLogprobs([1], [entry]))
            await world.pass_time(20)
        assert (world.sink.text, told) == ("ab", [b"a", b"b"])
        await grant(world, 1)
        assert (world.sink.text, told) == ("abc", [b"a", b"b", b"c"])
        await grant(world, 1)
        assert (world.sink.text, told) == ("abcd", [b"a", b"b", b"c", b"d"])
        await world.stage.stop()

    asyncio.run(main())


def test_a_client_that_grants_nothing_is_not_slow_but_has_its_time() -> None:
    async def body(world: StreamWorld) -> None:
        await say(world, "abc")
        await world.pass_time(4999)
        assert not world.sink.endings
        await world.pass_time(2)
        assert isinstance(world.sink.ending, RequestError) and world.sink.ending.code == "no_credit"
        assert await world.sent(Cancel) == [Cancel(1, CANCELLED)]
        await world.rows((1, "", 0, CANCELLED))
        assert world.stage.num_live == 0
        await grant(world, 1)

    in_world(body, max_paused_s=5.0, slow_client_s=0.5)


def test_each_grant_begins_the_time_anew() -> None:
    async def body(world: StreamWorld) -> None:
        await say(world, "abcde")
        for _ in range(3):
            await world.pass_time(900)
            await grant(world, 1)
        assert world.sink.text == "abcde" and not world.sink.endings
        await world.pass_time(1001)
        assert isinstance(world.sink.ending, RequestError)

    in_world(body, max_paused_s=1.0)


def test_an_ending_that_waits_for_a_grant_has_its_time_too() -> None:
    async def body(world: StreamWorld) -> None:
        await say(world, "abc", LENGTH)
        await world.pass_time(1001)
        assert isinstance(world.sink.ending, RequestError) and world.sink.ending.code == "no_credit"
        assert world.stage.num_live == 0 and await world.sent(Cancel) == []

    in_world(body, max_paused_s=1.0)


def test_a_full_buffer_and_no_credit_are_one_pause() -> None:
    async def body(world: StreamWorld) -> None:
        await world.rows((1, "x" * 2000, 1, NONE))
        world.clock.advance(100 * MS)
        await say(world, "bcd")
        assert await world.sent(Pause) == [Pause(1)]
        await grant(world, 5)
        assert await world.sent(Resume) == [], "its buffer is still full"
        world.sink.buffered = 0
        await world.pass_time(100)
        assert world.sink.text.endswith("bcd") and await world.sent(Resume) == [Resume(1)]

    in_world(body, client_buffer_bytes=1024, reads=False)


def test_a_client_that_is_away_is_not_slow() -> None:
    async def body(world: StreamWorld) -> None:
        world.sink.away = True
        await world.rows((1, "x" * 2000, 1, NONE))
        world.clock.advance(100 * MS)
        await say(world, "b")
        assert await world.sent(Pause) == [Pause(1)]
        for _ in range(10):
            await world.pass_time(900)
        world.sink.away = False
        await world.pass_time(900)
        assert not world.sink.endings, "its time begins when it is back"
        await world.pass_time(900)
        assert isinstance(world.sink.ending, RequestError)

    in_world(body, None, client_buffer_bytes=1024, reads=False, slow_client_s=1.0)


def test_a_request_may_ask_for_larger_pieces_only() -> None:
    async def body(world: StreamWorld) -> None:
        other = Sink()
        await world.stage.handle([Open(2, other, 0, flush_tokens=1, flush_ms=1.0)])
        for each in "abcdefgh":
            await world.rows((1, each, 1, NONE), (2, each, 1, NONE))
            await world.pass_time(2)
        assert [text for text, _ in world.sink.deltas] == ["a", "bcdefg"]
        assert [text for text, _ in other.deltas] == ["a", "bc", "de", "fg"]

    in_world(body, None, flush_tokens=2, flush_ms=20.0, asked_flush_tokens=6, asked_flush_ms=500.0)
