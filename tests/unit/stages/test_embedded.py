"""What takes the door's place in a program: it waits for room, and its readers are waited for."""

import asyncio
from typing import Any

import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.core.gate import Gate
from pipeline.core.wire import Wanted
from pipeline.errors import RequestError
from pipeline.messages import (
    Cancel,
    Completion,
    FinishReason,
    GenerateRequest,
    Open,
    SamplingParams,
    Timings,
)
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import StageContext
from pipeline.stages.embedded import Embedded, EmbeddedOptions, Reply
from pipeline.telemetry import Telemetry

WANTED = Wanted("Hi", None, SamplingParams())
DONE = Completion(FinishReason.LENGTH, 1, 1, Timings((), 1, None))


class World:
    def __init__(self, bound: int = 8, **options: Any) -> None:
        self.requests = Inbox[GenerateRequest](bound)
        self.opens, self.cancels = Inbox[Open](8), Inbox[Cancel](8)
        outlets: dict[type, Any] = {GenerateRequest: self.requests, Open: self.opens, Cancel: self.cancels}
        self.telemetry = Telemetry()
        resources: dict[type, object] = {Gate: Gate(), Telemetry: self.telemetry, ModelCard: byte_card()}
        ctx = StageContext("ingress", Inbox[Any](1), outlets, resources)
        self.stage = Embedded(ctx, EmbeddedOptions(**options))

    async def submit(self) -> Reply:
        return await self.stage.submit(WANTED)


def test_requests_are_numbered_as_they_get_in_and_opened_at_once() -> None:
    async def main() -> None:
        world = World()
        replies = [await world.submit() for _ in range(3)]
        assert [reply.request_id for reply in replies] == [0, 1, 2]
        assert [opened.sink for opened in await world.opens.recv_many()] == replies
        assert [request.request_id for request in await world.requests.recv_many()] == [0, 1, 2]
        assert world.telemetry.num_received == 3 and world.stage.gauges() == {"live_requests": 3}

    asyncio.run(main())


def test_a_full_pipeline_is_waited_for() -> None:
    async def main() -> None:
        world = World(bound=1)
        await world.submit()
        waiting = [asyncio.ensure_future(world.submit()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        for number in (0, 1, 2):
            (request,) = await world.requests.recv_many()
            assert request.request_id == number, "an id is used when its request gets in"
            await asyncio.sleep(0.01)
        assert [each.result().request_id for each in waiting] == [1, 2]

    asyncio.run(main())


def test_no_more_are_live_than_may_be() -> None:
    async def main() -> None:
        world = World(max_live_requests=1)
        first = await world.submit()
        waiting = asyncio.ensure_future(world.submit())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        first.done(DONE)
        assert (await waiting).request_id == 1 and list(world.stage.live) == [1]

    asyncio.run(main())


def test_a_wait_that_is_cancelled_leaves_nothing() -> None:
    async def main() -> None:
        world = World(bound=1)
        await world.submit()
        waiting = asyncio.ensure_future(world.submit())
        await asyncio.sleep(0)
        waiting.cancel()
        await world.requests.recv_many()
        await asyncio.sleep(0.01)
        assert world.requests.stats().sent == 1 and list(world.stage.live) == [0]

    asyncio.run(main())


def test_a_reply_is_read_to_its_end() -> None:
    async def main() -> None:
        reply = await World().submit()
        reply.delta("Hé", 1)
        reply.delta("", 1)  # half a character: no text yet
        assert reply.buffered_bytes() == 3 and reply.is_away()
        assert await reply.read() == "Hé"
        reading = asyncio.ensure_future(reply.read())
        await asyncio.sleep(0)
        reply.delta("y", 1)
        assert await reading == "y" and reply.buffered_bytes() == 0
        reply.delta("!", 1)
        reply.done(DONE)
        assert [await reply.read() for _ in range(3)] == ["!", "", ""]
        assert reply.num_output_tokens == 4

    asyncio.run(main())


def test_whoever_leaves_cancels_and_is_sent_nothing_more() -> None:
    async def main() -> None:
        world = World()
        reply = await world.submit()
        reply.delta("unread", 1)
        reply.leave()
        reply.delta("more", 1)
        assert reply.buffered_bytes() == 0
        assert await world.cancels.recv_many() == [Cancel(0, FinishReason.CANCELLED)]
        reply.done(DONE)
        reply.leave()
        assert world.cancels.stats().posted == 1 and not world.stage.live

    asyncio.run(main())


@pytest.mark.parametrize(("ends", "status"), [(lambda stage: stage.close(), 503), (None, 500)])
def test_the_end_is_told_to_who_reads_and_to_who_waits(ends: Any, status: int) -> None:
    async def main() -> None:
        world = World(max_live_requests=1)
        reply = await world.submit()
        waiting = [asyncio.ensure_future(reply.read()), asyncio.ensure_future(world.submit())]
        await asyncio.sleep(0)
        if ends is None:
            await world.stage.stop()  # nobody has closed it: it crashes
        else:
            ends(world.stage)
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(each, RequestError) for each in told)
        assert [each.status for each in told if isinstance(each, RequestError)] == [status, 503]
        assert world.stage.is_closed and not world.stage.live

    asyncio.run(main())
