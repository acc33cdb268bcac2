"""Trap 64: who does not read costs bounded memory, and nobody else anything."""

import asyncio

import pytest

from pipeline.errors import RequestError
from pipeline.messages import Cancel, FinishReason, Pause, Resume
from tests.text_world import Sink
from tests.unit.stages.stream_world import MS, StreamWorld, in_world

NONE, STOP, LENGTH, CANCELLED, ERROR, _ = FinishReason
LIMIT = 1024
SLOW = {"client_buffer_bytes": LIMIT, "slow_client_s": 1.0, "flush_ms": 10.0, "reads": False}


async def fill(world: StreamWorld) -> None:
    """Write more than the buffer may hold, and then some."""
    await world.rows((1, "x" * (LIMIT + 1), 1, NONE))
    world.clock.advance(20 * MS)
    await world.rows((1, "b", 1, NONE))


def test_a_client_that_does_not_read_is_paused_and_its_text_merged() -> None:
    async def body(world: StreamWorld) -> None:
        await fill(world)
        for _ in range(3):
            await world.rows((1, "c", 1, NONE))
            await world.pass_time(10)
        assert len(world.sink.deltas) == 1
        assert await world.sent(Pause) == [Pause(1)]
        assert await world.sent(Resume) == []

    in_world(body, **SLOW)


def test_when_it_has_read_it_gets_the_rest_and_goes_on() -> None:
    async def body(world: StreamWorld) -> None:
        await fill(world)
        world.sink.buffered = LIMIT // 2 + 1
        await world.pass_time(10)
        assert len(world.sink.deltas) == 1
        world.sink.buffered = LIMIT // 2
        await world.pass_time(10)
        assert world.sink.deltas[1:] == [("b", 1)]
        assert await world.sent(Resume) == [Resume(1)]
        world.clock.advance(20 * MS)
        await world.rows((1, "c", 1, NONE))
        assert world.sink.deltas[2:] == [("c", 1)]

    in_world(body, **SLOW)


def test_after_its_time_it_alone_is_cancelled() -> None:
    async def body(world: StreamWorld) -> None:
        other = await world.open(2, Sink())
        await fill(world)
        await world.pass_time(990)
        assert world.sink.endings == []
        await world.pass_time(10)
        error = world.sink.ending
        assert isinstance(error, RequestError) and (error.status, error.code) == (408, "slow_client")
        assert await world.sent(Cancel) == [Cancel(1, CANCELLED)]
        assert world.metric("stageline_cut_off_requests 1.0"), "until its cancel has gone round"
        await world.rows((1, "late", 1, NONE), (2, "a", 1, NONE))
        await world.rows((1, "", 0, CANCELLED), (2, "b", 1, STOP))
        assert len(world.sink.endings) == 1 and "late" not in world.sink.text
        assert other.text == "ab" and world.stage.num_live == 0
        assert world.telemetry.itl.count == 1, "what nobody was sent is no time between tokens"
        assert world.metric('stageline_requests_total{finish_reason="cancelled"} 1.0')
        assert world.metric("stageline_cut_off_requests 0.0")

    in_world(body, **SLOW)


@pytest.mark.parametrize("reads", [True, False])
def test_an_ending_waits_for_the_client_but_not_for_ever(reads: bool) -> None:
    async def body(world: StreamWorld) -> None:
        await fill(world)
        await world.rows((1, "c", 1, LENGTH))
        draining = asyncio.create_task(world.stage.drain())
        await asyncio.sleep(0)
        assert world.sink.endings == [] and not draining.done()
        if reads:
            world.sink.buffered = 0
        await world.pass_time(1000)
        await draining
        assert world.stage.num_live == 0
        if reads:
            assert world.sink.deltas[1:] == [("bc", 2)]
            assert world.sink.completion.num_output_tokens == 3
        else:
            assert isinstance(world.sink.ending, RequestError)
        assert await world.sent(Cancel) == await world.sent(Resume) == []

    in_world(body, **SLOW)


def test_an_ending_is_held_back_by_a_full_buffer_too() -> None:
    async def body(world: StreamWorld) -> None:
        await world.rows((1, "x" * (LIMIT + 1), 1, NONE))
        await world.rows((1, "b", 1, STOP))
        assert (len(world.sink.deltas), world.sink.endings) == (1, [])
        assert await world.sent(Pause) == []  # there is nothing left to pause
        world.sink.buffered = 0
        await world.pass_time(10)
        assert world.sink.completion.finish_reason is STOP

    in_world(body, **SLOW)
