"""KV events over real sockets: a router that hears them knows what will be found where."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from pipeline import admin
from pipeline import config as configuration
from pipeline.admin import AdminServer
from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady
from tests.e2e.test_prefix_cache import ReadingRunner
from tests.e2e.world import Server, serving

BLOCK = 4
DEVICE = DeviceReady(num_blocks=60, block_size=BLOCK, max_num_seqs=4, max_num_batched_tokens=64)


def told(kept: int) -> str:
    return f"[stages.schedule.options]\nkv_events = {kept}\n"


@asynccontextmanager
async def world(
    card: ModelCard, toml: str
) -> AsyncIterator[tuple[Server, AdminServer, aiohttp.ClientSession]]:
    config = configuration.loads("[admin]\nport = 0", "test.toml")
    async with (
        serving(card, lambda: ReadingRunner(DEVICE), toml) as server,
        admin.beside(server.pipeline, config, card) as page,
        aiohttp.ClientSession() as session,
    ):
        assert page is not None
        yield server, page, session


class Router:
    """What a subscriber keeps: the tree of blocks, by parent and token ids. It knows the wire alone."""

    def __init__(self) -> None:
        self.hello: dict[str, Any] = {}
        self.gaps: list[dict[str, Any]] = []
        self.kinds: list[str] = []
        self.seq = 0
        self.last_id = ""
        self.blocks: dict[tuple[str, tuple[int, ...]], str] = {}
        self._places: dict[str, tuple[str, tuple[int, ...]]] = {}

    def take(self, kind: str, data: dict[str, Any]) -> None:
        self.kinds.append(kind)
        if kind == "hello":
            self.hello = data
        elif kind == "gap":
            self.gaps.append(data)
        elif kind == "cleared":
            self.blocks.clear()
            self._places.clear()
        elif kind == "stored":
            place = (data["parent"], tuple(data["token_ids"]))
            assert place[0] in self._places or place[0].startswith("root-"), "a parent comes first"
            assert place not in self.blocks and len(place[1]) == self.hello["block_size"]
            self.blocks[place], self._places[data["key"]] = data["key"], place
        else:
            assert kind == "removed"
            del self.blocks[self._places.pop(data["key"])]
        self.seq = data.get("seq", self.seq)

    def predict(self, root: str, token_ids: list[int]) -> int:
        """Tokens that will be found."""
        parent, size = root, self.hello["block_size"]
        for index in range((len(token_ids) - 1) // size):
            key = self.blocks.get((parent, tuple(token_ids[index * size : (index + 1) * size])))
            if key is None:
                return index * size
            parent = key
        return (len(token_ids) - 1) // size * size

    async def listen(self, session: aiohttp.ClientSession, url: str, **ask: Any) -> None:
        """Until cancelled."""
        async with session.get(url, **ask) as response:
            assert response.status == 200 and response.content_type == "text/event-stream"
            while True:
                frame = (await response.content.readuntil(b"\n\n")).decode()
                fields = dict(line.split(": ", 1) for line in frame.strip().splitlines())
                self.last_id = fields.get("id", self.last_id)
                if "event" in fields:
                    self.take(fields["event"], json.loads(fields["data"]))


@asynccontextmanager
async def listening(
    router: Router, server: Server, session: aiohttp.ClientSession, url: str, **ask: Any
) -> AsyncIterator[Router]:
    task = asyncio.create_task(router.listen(session, url, **ask))
    try:
        await caught_up(router, server, task)
        yield router
    finally:
        task.cancel()
        await asyncio.wait([task])


async def caught_up(router: Router, server: Server, task: "asyncio.Task[None] | None" = None) -> None:
    feed = server.pipeline.telemetry.kv_events
    assert feed is not None
    async with asyncio.timeout(5):
        while router.seq != feed.events.last_seq:
            assert task is None or not task.done(), task
            await asyncio.sleep(0.001)


async def ask(
    session: aiohttp.ClientSession, server: Server, token_ids: list[int], **who: Any
) -> tuple[int, str]:
    """Cached tokens and the answer."""
    body = {"prompt": token_ids, "max_tokens": 6, "seed": 5, "ignore_eos": True, **who}
    async with session.post(f"{server.url}/v1/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached, answer["choices"][0]["text"]


async def root_of(session: aiohttp.ClientSession, page: AdminServer, **who: str) -> str:
    async with session.get(f"{page.url}/api/kv/root", params=who) as response:
        root: str = (await response.json())["root"]
        return root


def test_a_router_that_hears_them_predicts_every_hit(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with world(fake_card, told(10_000)) as (server, page, session):
            people: list[dict[str, str]] = [{}, {"user": "a"}, {"user": "a", "cache_salt": "s"}]
            roots = [await root_of(session, page, **who) for who in people]
            assert len(set(roots)) == 3
            async with listening(Router(), server, session, f"{page.url}/api/kv/events") as router:
                assert router.hello["root"] == roots[0] and router.kinds == ["hello", "cleared"]
                chance, past, num_hits = random.Random(3), [[40, 41, 42]], 0
                for _ in range(60):  # conversations that go on, part, and push one another out
                    prompt = chance.choice(past)[: chance.randrange(3, 60)]
                    prompt = [*prompt, *(chance.randrange(40, 43) for _ in range(chance.randrange(1, 12)))]
                    past.append(prompt)
                    person = chance.randrange(3)
                    await caught_up(router, server)
                    expected = router.predict(roots[person], prompt)
                    cached, _ = await ask(session, server, prompt, **people[person])
                    assert cached == expected
                    num_hits += cached > 0
                assert num_hits > 15 and "removed" in router.kinds
                await caught_up(router, server)
                cache: Any = server.scheduler.residents.prefixes
                assert set(router._places) == {each.link.key.hex() for each in cache._on_device.values()}

    asyncio.run(main())


def test_who_comes_back_goes_on_or_is_told_all(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with world(fake_card, told(12)) as (server, page, session):
            url = f"{page.url}/api/kv/events"
            await ask(session, server, list(range(40, 60)))
            async with listening(Router(), server, session, url) as router:
                seen, held = router.seq, dict(router.blocks)
                assert held and router.kinds[:2] == ["hello", "cleared"]
            await ask(session, server, list(range(50, 60)))
            more = [
                {"url": f"{url}?from={seen + 1}"},
                {"url": url, "headers": {"Last-Event-ID": router.last_id}},
            ]
            for way in more:
                back = Router()
                back.hello, back.seq = router.hello, router.seq
                back.blocks, back._places = dict(router.blocks), dict(router._places)
                async with listening(back, server, session, **way):
                    assert back.kinds == ["hello", "stored", "stored", "stored"] and not back.gaps
                    assert len(back.blocks) == len(held) + 3
            for token_id in (70, 71, 72):
                await ask(session, server, [token_id] * 30)
            stale = [f"{url}?from={seen + 1}", f"{url}?from=999999", f"{url}?from={seen}&start=other"]
            for place in stale:
                async with listening(Router(), server, session, place) as late:
                    assert late.kinds[:3] == ["hello", "gap", "cleared"] and "removed" not in late.kinds
                    cache: Any = server.scheduler.residents.prefixes
                    assert set(late._places) == {each.link.key.hex() for each in cache._on_device.values()}
            headers = {"Last-Event-ID": "other-5"}
            async with listening(Router(), server, session, url, headers=headers) as late:
                assert late.gaps == [{"from": 0, "first_seq": late.hello["first_seq"], "last_seq": late.seq}]
            async with session.get(f"{url}?from=x") as response:
                assert response.status == 400 and "'from' must be a number" in await response.text()

    asyncio.run(main())


@pytest.mark.parametrize("toml", ["", told(9) + "prefix_cache = false\n"])
def test_none_are_told_unless_asked_for(fake_card: ModelCard, toml: str) -> None:
    async def main() -> None:
        async with world(fake_card, toml) as (_, page, session):
            for path in ("events", "root"):
                async with session.get(f"{page.url}/api/kv/{path}") as response:
                    assert response.status == 404 and "schedule.options.kv_events" in await response.text()

    asyncio.run(main())


def test_there_are_not_more_than_so_many(fake_card: ModelCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.admin.kv.MAX_SUBSCRIBERS", 1)

    async def main() -> None:
        async with world(fake_card, told(9)) as (server, page, session):
            url = f"{page.url}/api/kv/events"
            async with listening(Router(), server, session, url), session.get(url) as response:
                assert response.status == 503 and "1 subscribers" in await response.text()
            feed = server.pipeline.telemetry.kv_events
            async with asyncio.timeout(5):
                while feed is not None and feed.events.gauges()["kv_events_subscribers"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            async with listening(Router(), server, session, url) as router:
                assert router.kinds == ["hello", "cleared"]

    asyncio.run(main())


def test_streams_end_with_the_server(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with world(fake_card, told(9)) as (server, page, session):
            async with session.get(f"{page.url}/api/kv/events") as response:
                await response.content.readuntil(b"event: cleared")
                feed = server.pipeline.telemetry.kv_events
                assert feed is not None and feed.events.gauges()["kv_events_subscribers"] == 1
                await page.stop()
                assert (await response.content.read()).count(b"event") == 0
            assert feed.events.gauges()["kv_events_subscribers"] == 0

    asyncio.run(main())
