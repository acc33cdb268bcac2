"""What one key has asked can be found out by no other: not from usage, the cache, its events, nor by id."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import pytest

from pipeline import admin
from pipeline import config as configuration
from pipeline.checkpoint.card import ModelCard
from pipeline.core.keys import fingerprint
from pipeline.messages import DeviceReady, StepPlan
from pipeline.runtime.testing import CheckingRunner, FakeHandle
from tests.e2e.world import Server, serving

DEVICE = DeviceReady(num_blocks=512, block_size=4, max_num_seqs=16, max_num_batched_tokens=256)
PROMPT = "The plan is to meet at the old lighthouse."
ALL_BUT_LAST = (len(PROMPT) - 1) // 4 * 4
ANN, BOB = {"Authorization": "Bearer of-ann"}, {"Authorization": "Bearer of-bob"}


class CountingRunner(CheckingRunner):
    """Knows how many tokens each step computed, which is all that its time depends on."""

    computed: ClassVar[dict[int, int]] = {}
    """By request of the latest server."""

    def __init__(self) -> None:
        super().__init__(DEVICE)
        self.computed.clear()

    def launch(self, plan: StepPlan, /) -> FakeHandle:
        for request_id, num_tokens in zip(plan.request_ids, plan.num_tokens, strict=True):
            self.computed[request_id] = self.computed.get(request_id, 0) + num_tokens
        return super().launch(plan)


def run(
    card: ModelCard, toml: str, visit: Callable[[Server, aiohttp.ClientSession], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with serving(card, CountingRunner, toml) as server, aiohttp.ClientSession() as session:
            await visit(server, session)

    asyncio.run(main())


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys.toml"
    file.write_text("".join(f'[{name}]\nsha256 = "{fingerprint(f"of-{name}")}"\n' for name in ("ann", "bob")))
    return f'[stages.ingress.options]\nkeys_file = "{file}"\n[stages.schedule.options]\nkv_events = 1000\n'


async def ask(
    session: aiohttp.ClientSession, server: Server, headers: dict[str, str], **more: Any
) -> tuple[str, int, int]:
    """Its id, how many of its prompt's tokens were cached, and how many the device computed."""
    body = {"prompt": PROMPT, "max_tokens": 1, "ignore_eos": True, **more}
    async with session.post(f"{server.url}/v1/completions", json=body, headers=headers) as response:
        answer = await response.json()
        assert response.status == 200, answer
    computed = CountingRunner.computed[int(answer["id"].rpartition("-")[2])]
    return answer["id"], answer["usage"]["prompt_tokens_details"]["cached_tokens"], computed


def test_keys_and_salts_share_nothing(fake_card: ModelCard, keys: str) -> None:
    """Where nothing is shared everything is computed: the time that it takes tells nothing either."""

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        whole = len(PROMPT)
        others: list[tuple[dict[str, str], dict[str, Any]]] = [
            (ANN, {}),
            (BOB, {}),
            (ANN, {"cache_salt": "s"}),
            (ANN, {"cache_salt": "t"}),
            (BOB, {"cache_salt": "s"}),
        ]
        for headers, more in others:
            assert (await ask(session, server, headers, **more))[1:] == (0, whole)
        for headers, more in others:  # what is one's own is found
            found = (await ask(session, server, headers, **more))[1:]
            assert found == (ALL_BUT_LAST, whole - ALL_BUT_LAST)
        # a key's holder cannot become another by naming him
        for user in ("ann", "of-ann", "key-" + fingerprint("of-ann")[:16]):
            assert (await ask(session, server, BOB, user=user, cache_salt=f"u-{user}"))[1:] == (0, whole)
        assert (await ask(session, server, BOB, cache_salt=""))[1] == ALL_BUT_LAST  # as without

    run(fake_card, keys, visit)


def test_a_socket_is_its_key_s(fake_card: ModelCard, keys: str) -> None:
    async def cached(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> int:
        async with session.ws_connect(f"{url}/v1/stream", headers=headers) as ws:
            await ws.send_json({"type": "generate", "id": "a", "prompt": PROMPT, "max_tokens": 1})
            while (frame := await ws.receive_json(timeout=10))["type"] != "done":
                assert frame["type"] in ("accepted", "delta")
            return int(frame["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        assert [await cached(session, server.url, who) for who in (ANN, BOB, ANN, BOB)] == [
            0,
            0,
            ALL_BUT_LAST,
            ALL_BUT_LAST,
        ]
        assert (await ask(session, server, ANN))[1] == ALL_BUT_LAST  # the same on either door

    run(fake_card, keys, visit)


def test_another_s_request_is_as_one_that_never_was(fake_card: ModelCard, keys: str) -> None:
    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        request_id, _, _ = await ask(session, server, ANN)
        none = request_id.rpartition("-")[0] + "-999"

        async def answers(method: str, asked: str, headers: dict[str, str]) -> tuple[int, bytes]:
            url = f"{server.url}/v1/requests/{asked}"
            async with session.request(method, url, headers=headers) as response:
                return response.status, await response.read()

        for method in ("GET", "DELETE"):
            assert await answers(method, request_id, BOB) == await answers(method, none, BOB)
            assert (await answers(method, request_id, BOB))[0] == 404
            assert (await answers(method, request_id, ANN))[0] == 200

    run(fake_card, keys, visit)


def test_events_of_the_cache_name_nobody(fake_card: ModelCard, keys: str) -> None:
    """Equal prompts of two keys have no key of a block in common, and roots that say nothing."""

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        config = configuration.loads("[admin]\nport = 0", "test.toml")
        async with admin.beside(server.pipeline, config, fake_card) as beside:
            assert beside is not None
            for headers in (ANN, BOB):
                await ask(session, server, headers, cache_salt="of-both", user="of-both")
            stored = await stored_blocks(session, f"{beside.url}/api/kv/events", 2 * ALL_BUT_LAST // 4)
            url = f"{beside.url}/api/kv/root?cache_salt=of-both&user=of-both"
            asked = {await root_of(session, url, headers) for headers in (ANN, BOB)}
            async with session.get(url) as response:
                assert response.status == 401
        names = [block["key"] for block in stored]
        roots = {block["parent"] for block in stored} - set(names)
        assert len(names) == len(set(names)) == 2 * ALL_BUT_LAST // 4 and len(roots) == 2
        assert asked == roots
        assert not any(word in json.dumps(stored) for word in ("ann", "bob", "of-"))

    run(fake_card, keys, visit)


async def stored_blocks(session: aiohttp.ClientSession, url: str, count: int) -> list[dict[str, Any]]:
    """The first blocks that a new subscriber is told of."""
    stored: list[dict[str, Any]] = []
    async with asyncio.timeout(10), session.get(url) as response:
        while len(stored) < count:
            frame = (await response.content.readuntil(b"\n\n")).decode()
            fields = dict(line.split(": ", 1) for line in frame.strip().splitlines())
            if fields.get("event") == "stored":
                stored.append(json.loads(fields["data"]))
    return stored


async def root_of(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> str:
    async with session.get(url, headers=headers) as response:
        return str((await response.json())["root"])
