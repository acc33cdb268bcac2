"""Pinning a prompt, as a client and an operator see it."""

import asyncio
from typing import Any

import aiohttp

from pipeline.checkpoint.card import ModelCard
from tests.e2e.scraped import scrape
from tests.e2e.test_kv_events import DEVICE, ask, world
from tests.e2e.world import Server

ON = "[stages.schedule.options]\nmax_pinned_blocks = 8\n"
SYSTEM = list(range(40, 71))
"""31 tokens: 7 full blocks."""


async def churn(session: aiohttp.ClientSession, server: Server) -> None:
    """As many other blocks as the pool has, twice."""
    for token_id in range(2 * DEVICE.num_blocks // 10):
        await ask(session, server, [72 + token_id] * 40)


def test_a_pinned_prompt_stays_until_it_is_released(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with world(fake_card, ON) as (server, page, session):
            _, answer = await ask(session, server, SYSTEM)
            await churn(session, server)
            assert await ask(session, server, SYSTEM) == (0, answer), "what is not pinned is gone"
            assert await ask(session, server, SYSTEM, cache_pin=True) == (28, answer)
            await churn(session, server)
            assert await ask(session, server, SYSTEM) == (28, answer)
            page_of_metrics = await scrape(session, server)
            assert page_of_metrics.total("stageline_kv_blocks_pinned") == 7
            async with session.delete(f"{page.url}/api/kv/pins") as response:
                assert response.status == 202
            assert (await scrape(session, server)).total("stageline_kv_blocks_pinned") == 0
            assert (await ask(session, server, SYSTEM))[0] == 28, "it is cached as anything"
            await churn(session, server)
            assert (await ask(session, server, SYSTEM))[0] == 0
            assert server.scheduler.pool.num_free == DEVICE.num_blocks

    asyncio.run(main())


def test_pins_give_way_to_requests_and_to_later_pins(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with world(fake_card, ON) as (server, _, session):
            await ask(session, server, SYSTEM, cache_pin=True)
            other = [*range(80, 105)]
            await ask(session, server, other, cache_pin=True)  # 6 blocks: with the 7 there, 5 too many
            await churn(session, server)
            cached = [(await ask(session, server, prompt))[0] for prompt in (SYSTEM, other)]
            assert cached == [8, 24]
            whole: dict[str, Any] = {"max_tokens": 4 * DEVICE.num_blocks - 100, "ignore_eos": True}
            body = {"prompt": [33] * 100, "seed": 5, **whole}
            async with session.post(f"{server.url}/v1/completions", json=body) as response:
                assert response.status == 200, "one that needs every block has them"
            gauges = server.scheduler.residents.pins
            assert gauges is not None and gauges.gauges() == {
                "kv_blocks_pinned": 0,
                "kv_pins_released_total": 5,
                "kv_pins_taken_total": 8,
            }

    asyncio.run(main())


def test_a_server_that_pins_nothing_says_so(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with world(fake_card, "") as (server, page, session):
            for pins, status in ((True, 400), (False, 200)):
                body = {"prompt": SYSTEM, "max_tokens": 2, "cache_pin": pins}
                async with session.post(f"{server.url}/v1/completions", json=body) as response:
                    assert response.status == status
                    assert ("stages.schedule.options.max_pinned_blocks" in await response.text()) == pins
            async with session.delete(f"{page.url}/api/kv/pins") as response:
                assert response.status == 404 and "max_pinned_blocks" in await response.text()

    asyncio.run(main())
