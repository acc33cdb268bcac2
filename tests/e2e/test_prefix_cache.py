"""Prefix sharing through the whole server: the same texts with it and without, and what is told of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady, StepPlan
from pipeline.runtime.testing import CheckingRunner, FakeHandle
from tests.e2e.scraped import scrape
from tests.e2e.world import Server, serving

DEVICE = DeviceReady(num_blocks=512, block_size=4, max_num_seqs=16, max_num_batched_tokens=64)
CRAMPED = replace(DEVICE, num_blocks=60)
SWAPPING = replace(CRAMPED, num_host_blocks=60, block_copy_ns=1)
OFF = "[stages.schedule.options]\nprefix_cache = false\nmax_wait_ms = 0\n"
ON = "[stages.schedule.options]\nmax_wait_ms = 0\n"


class ReadingRunner(CheckingRunner):
    """Samples by all that a row has read, so that one wrong token in a block changes the text after it."""

    def _sample(self, plan: StepPlan, histories: list[int]) -> FakeHandle:
        handle = super()._sample(plan, histories)
        read = [history for history, samples in zip(histories, plan.samples, strict=True) if samples]
        token_ids = [
            33 + (token_id + history) % 94
            for token_id, history in zip(handle.token_ids_sync(), read, strict=True)
        ]
        return FakeHandle(plan, token_ids, handle.begin_ns, handle.end_ns)


def body(prompt: str, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 24, "seed": 5, "ignore_eos": True, **more}


async def ask(
    session: aiohttp.ClientSession, server: Server, prompt: str, key: str = "", **more: Any
) -> tuple[str, int]:
    """Text and cached tokens."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"{server.url}/v1/completions"
    async with session.post(url, json=body(prompt, **more), headers=headers) as response:
        answer = await response.json()
        assert response.status == 200, answer
        details = answer["usage"]["prompt_tokens_details"]
        return answer["choices"][0]["text"], details["cached_tokens"]


SYSTEM = "You are a lighthouse keeper who answers in few words. "
QUESTIONS = ("Who are you? ", "Who were you before? ", "What is the weather? ", "What? ")


async def conversations(server: Server) -> list[str]:
    """Sixteen at once that begin alike, each of three turns that bring the answers so far."""

    async def one(session: aiohttp.ClientSession, k: int) -> str:
        text = SYSTEM
        for turn in range(3):
            text += QUESTIONS[(k // (turn + 1)) % len(QUESTIONS)]
            text += (await ask(session, server, text, seed=k % 3))[0]
        return text

    async with aiohttp.ClientSession() as session:
        return list(await asyncio.gather(*(one(session, k) for k in range(16))))


@pytest.mark.parametrize("device", [DEVICE, CRAMPED, SWAPPING], ids=["roomy", "cramped", "swapping"])
def test_texts_are_the_same_with_and_without(fake_card: ModelCard, device: DeviceReady) -> None:
    async def texts(toml: str) -> tuple[list[str], Server]:
        async with serving(fake_card, lambda: ReadingRunner(device), toml) as server:
            told = await conversations(server)
            await server.rest()
            return told, server

    alone, without = asyncio.run(texts(OFF))
    shared, server = asyncio.run(texts(ON))
    assert shared == alone and len(set(shared)) > 8
    gauges = server.scheduler.residents.prefixes.gauges()
    assert gauges["prefix_hit_tokens_total"] > 0 and not without.scheduler.residents.prefixes.gauges()
    if device is DEVICE:
        assert gauges["prefix_hit_tokens_total"] > 0.5 * gauges["prefix_queried_tokens_total"]
    else:
        assert server.scheduler.num_preemptions > 0
    if device is SWAPPING:
        assert server.scheduler.policies.gauges()["swaps_total"] > 0


def test_who_shares_with_whom(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with (
            serving(fake_card, lambda: ReadingRunner(DEVICE)) as server,
            aiohttp.ClientSession() as session,
        ):
            prompt = "x" * 41
            first, cached = await ask(session, server, prompt, key="one")
            assert cached == 0
            assert await ask(session, server, prompt, key="one") == (first, 40)
            for others in ({"key": "two"}, {}, {"user": "one"}, {"key": "one", "cache_salt": "s"}):
                assert await ask(session, server, prompt, **others) == (first, 0)
            assert await ask(session, server, prompt, key="one", cache_salt="s") == (first, 40)

    asyncio.run(main())


def test_hits_are_told_on_every_door_and_counted(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with (
            serving(fake_card, lambda: ReadingRunner(DEVICE)) as server,
            aiohttp.ClientSession() as session,
        ):
            prompt = "y" * 41
            await ask(session, server, prompt)
            streamed = body(prompt, stream=True, stream_options={"include_usage": True})
            async with session.post(f"{server.url}/v1/completions", json=streamed) as response:
                assert '"prompt_tokens_details":{"cached_tokens":40}' in await response.text()
            async with session.ws_connect(f"{server.url}/v1/stream") as ws:
                await ws.send_json({"type": "generate", "id": "a", **body(prompt)})
                while (frame := await ws.receive_json(timeout=10))["type"] != "done":
                    assert frame["type"] in ("accepted", "delta")
                assert frame["usage"]["prompt_tokens_details"] == {"cached_tokens": 40}
            records = server.pipeline.telemetry.journal.requests()
            assert [record.num_cached_tokens for record in records] == [0, 40, 40]
            page = await scrape(session, server)
            assert (
                page.total("stageline_prefix_hit_tokens_total")
                == page.total("vllm:prefix_cache_hits_total")
                == 80
            )
            assert page.total("stageline_prefix_queried_tokens_total") == 123
            assert page.total("stageline_kv_blocks_used") == 0 < page.total("stageline_kv_blocks_cached")

    asyncio.run(main())


def test_ten_that_come_together_are_computed_once(fake_card: ModelCard) -> None:
    async def main() -> None:
        computed: list[int] = []

        class Counting(ReadingRunner):
            def launch(self, plan: StepPlan, /) -> FakeHandle:
                computed.append(len(plan.token_ids))
                return super().launch(plan)

        async with serving(fake_card, lambda: Counting(DEVICE)) as server, aiohttp.ClientSession() as session:
            asked = [ask(session, server, "z" * 200, max_tokens=1) for _ in range(10)]
            assert len({text for text, _ in await asyncio.gather(*asked)}) == 1
            assert sum(computed) == 200 + 9 * 4

    asyncio.run(main())


@pytest.mark.model
@pytest.mark.parametrize(
    "device",
    [
        pytest.param('backend = "torch"\nkv_dtype = "fp8"', marks=pytest.mark.nightly),
        pytest.param('dtype = "float32"', marks=pytest.mark.nightly),
        'backend = "host"\nweights = "bf16"',
        'backend = "host"\nweights = "int8"\nkv_dtype = "int8"',
    ],
)
def test_the_real_model_says_the_same(model_card: ModelCard, device: str) -> None:
    """Greedy and seeded, six at once and one after the other; the second time all is there."""

    async def texts(toml: str, ask_all: Callable[[Any, Server], Any]) -> tuple[list[str], int]:
        config = f'[device]\ndevice = "cpu"\nnum_blocks = 256\n{device}\n{toml}'
        async with serving(model_card, toml=config) as server, aiohttp.ClientSession() as session:
            answers = await ask_all(session, server)
            return [text for text, _ in answers], sum(cached for _, cached in answers)

    def asked(session: aiohttp.ClientSession, server: Server) -> list[Any]:
        some = [{"temperature": 0}, {"temperature": 0.8, "seed": 3}]
        return [
            ask(session, server, SYSTEM * 2 + QUESTIONS[k % 3], **some[k % 2], max_tokens=10)
            for k in range(6)
        ]

    async def in_turn(session: aiohttp.ClientSession, server: Server) -> list[tuple[str, int]]:
        return [await each for each in asked(session, server)]

    async def twice(session: aiohttp.ClientSession, server: Server) -> list[tuple[str, int]]:
        first = await asyncio.gather(*asked(session, server))
        again = await asyncio.gather(*asked(session, server))
        assert [text for text, _ in first] == [text for text, _ in again]
        return list(first)

    alone, none = asyncio.run(texts(OFF, in_turn))
    shared, cached = asyncio.run(texts(ON, twice))
    in_order, _ = asyncio.run(texts(ON, in_turn))
    assert shared == alone == in_order and none == 0 < cached
