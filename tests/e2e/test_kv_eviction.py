"""Contexts that drop blocks, through the whole server: prompts longer than the pool, and what is told."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady
from pipeline.runtime.testing import CheckingRunner
from tests.e2e.scraped import scrape
from tests.e2e.test_prefix_cache import ReadingRunner
from tests.e2e.world import Server, serving

SMALL = DeviceReady(num_blocks=24, block_size=4, max_num_seqs=8, max_num_batched_tokens=32)
ROOMY = replace(SMALL, num_blocks=2000)
WINDOW = {"kv_eviction": "sink_window", "kv_budget": 24, "kv_sinks": 4}
HEAVY = WINDOW | {"kv_eviction": "heavy_hitter"}
LONG = "".join(chr(33 + (k * k + k // 7) % 90) for k in range(300))


def body(prompt: str, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 24, "seed": 5, "ignore_eos": True, **more}


async def ask(session: aiohttp.ClientSession, server: Server, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Text and usage."""
    async with session.post(f"{server.url}/v1/completions", json=fields) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer["choices"][0]["text"], answer["usage"]


async def refused(session: aiohttp.ClientSession, server: Server, **fields: Any) -> dict[str, Any]:
    async with session.post(f"{server.url}/v1/completions", json=fields) as response:
        assert response.status == 400
        error: dict[str, Any] = (await response.json())["error"]
        return error


def one_cache(device: DeviceReady) -> Callable[[], ReadingRunner]:
    """Every worker's runner is of the same cache."""
    runners: list[CheckingRunner] = []

    def make() -> Any:
        runners.append(runners[0].fork() if runners else ReadingRunner(device))
        return runners[-1]

    return make


def run(
    card: ModelCard,
    device: DeviceReady,
    use: Callable[[aiohttp.ClientSession, Server], Awaitable[Any]],
    toml: str = "",
) -> Any:
    async def main() -> Any:
        async with serving(card, one_cache(device), toml) as server:
            async with aiohttp.ClientSession() as session:
                result = await use(session, server)
            await server.rest()
            return result

    return asyncio.run(main())


SETTINGS = [
    "",
    '[stages.schedule.options]\nseparation = "split"\n',
    "[stages.schedule.options]\nprefix_cache = false\ncredits = 1\n",
]


@pytest.mark.parametrize("toml", SETTINGS, ids=["mixed", "split", "plain"])
def test_a_window_shows_the_same_whatever_the_memory(fake_card: ModelCard, toml: str) -> None:
    """A text is by all that its tokens could see: in a pool that could hold all, alone, and in a tiny one."""
    asked = [body(LONG[:size], seed=size, **WINDOW) for size in (300, 150, 299, 40, 300, 23)]

    async def alone(session: aiohttp.ClientSession, server: Server) -> list[str]:
        return [(await ask(session, server, **fields))[0] for fields in asked]

    async def together(session: aiohttp.ClientSession, server: Server) -> list[str]:
        answers = await asyncio.gather(*(ask(session, server, **fields) for fields in asked))
        for fields, (_, usage) in zip(asked, answers, strict=True):
            num_kept = len(fields["prompt"]) + 23 - usage.get("kv_dropped_tokens", 0)
            assert num_kept <= 24 + 4 or server.scheduler.num_preemptions
        return [text for text, _ in answers]

    expected = run(fake_card, ROOMY, alone)
    assert run(fake_card, SMALL, together, toml) == expected and len(set(expected)) > 4


def test_a_window_as_long_as_the_context_changes_nothing(fake_card: ModelCard) -> None:
    async def texts(session: aiohttp.ClientSession, server: Server) -> None:
        plain, usage = await ask(session, server, **body(LONG))
        wide, same = await ask(session, server, **body(LONG, **WINDOW | {"kv_budget": 323}))
        narrow, other = await ask(session, server, **body(LONG, **WINDOW))
        assert wide == plain != narrow
        assert "kv_dropped_tokens" not in usage | same and other["kv_dropped_tokens"] == 296

    run(fake_card, ROOMY, texts)


@pytest.mark.parametrize("toml", SETTINGS, ids=["mixed", "split", "plain"])
def test_heavy_hitters_are_served_beside_others_in_a_tiny_pool(fake_card: ModelCard, toml: str) -> None:
    """The runner checks every block that is read; it names blocks all over the context."""

    async def together(session: aiohttp.ClientSession, server: Server) -> None:
        asked = [body(LONG[: 300 - k], seed=k, **HEAVY) for k in range(4)]
        asked += [body(LONG[:60], seed=7), body(LONG[:200], **WINDOW)]
        answers = await asyncio.gather(*(ask(session, server, **fields) for fields in asked))
        assert all(usage["completion_tokens"] == 24 for _, usage in answers)
        assert all(usage.get("kv_dropped_tokens", 0) >= 250 for _, usage in answers[:4])

    run(fake_card, SMALL, together, toml)


def test_the_server_s_own_default_and_a_request_s_choice(fake_card: ModelCard) -> None:
    toml = '[stages.schedule.options]\nkv_eviction = "sink_window"\nkv_budget = 24\nkv_sinks = 4\n'

    async def main(session: aiohttp.ClientSession, server: Server) -> None:
        by_default, _ = await ask(session, server, **body(LONG))
        by_request, _ = await ask(session, server, **body(LONG, **WINDOW))
        assert by_default == by_request
        whole, usage = await ask(session, server, **body(LONG[:60], kv_eviction="none"))
        assert "kv_dropped_tokens" not in usage
        assert (await ask(session, server, **body(LONG[:60])))[0] != whole

    run(fake_card, SMALL, main, toml)


def test_what_is_wrong_is_refused_with_field_and_limit(fake_card: ModelCard) -> None:
    async def main(session: aiohttp.ClientSession, server: Server) -> None:
        cases: list[tuple[dict[str, Any], str, str]] = [
            ({"kv_eviction": "h2o"}, "kv_eviction", "one of none, sink_window, heavy_hitter"),
            ({"kv_eviction": 3}, "kv_eviction", "one of none, sink_window, heavy_hitter"),
            (WINDOW | {"kv_budget": 0}, "kv_budget", "an integer from 1"),
            (WINDOW | {"kv_sinks": -1}, "kv_sinks", "an integer from 0"),
            (WINDOW | {"kv_budget": 8}, "kv_budget", "at least 12 for 4 sinks in blocks of 4, but is 8"),
            (WINDOW | {"kv_budget": 95}, "kv_budget", "at most 92: the KV cache has no more, but is 95"),
            ({"kv_budget": 24}, "kv_budget", "left out where 'kv_eviction' is \"none\""),
            ({"kv_eviction": "none", "kv_sinks": 4}, "kv_sinks", "left out where"),
        ]
        for fields, param, words in cases:
            error = await refused(session, server, **body(LONG, **fields))
            assert error["param"] == param and words in error["message"], error
        error = await refused(session, server, **body(LONG))
        assert error["code"] == "kv_capacity_exceeded" and "'kv_eviction'" in error["message"]

    run(fake_card, SMALL, main)


def test_what_is_dropped_is_told_on_every_door_and_counted(fake_card: ModelCard) -> None:
    async def main(session: aiohttp.ClientSession, server: Server) -> None:
        fields = body(LONG, **WINDOW)
        _, usage = await ask(session, server, **fields)
        assert usage["kv_dropped_tokens"] == 296
        async with session.ws_connect(f"{server.url}/v1/stream") as ws:
            await ws.send_json({"type": "generate", "id": "a", **fields})
            while (frame := await ws.receive_json(timeout=10))["type"] != "done":
                assert frame["type"] in ("accepted", "delta")
            assert frame["usage"]["kv_dropped_tokens"] == 296
        chat = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4, **WINDOW}
        async with session.post(f"{server.url}/v1/chat/completions", json=chat) as response:
            assert (await response.json())["usage"]["kv_dropped_tokens"] >= 300 - 24
        stopped = await ask(session, server, **fields, stop=[(await ask(session, server, **fields))[0][5:8]])
        assert stopped[1]["kv_dropped_tokens"] >= 276, "it was ended by the text side"
        records = server.pipeline.telemetry.journal.requests()
        assert [record.num_dropped_tokens for record in records[:2]] == [296, 296]
        page = await scrape(session, server)
        assert page.total("stageline_kv_dropped_blocks_total") >= (3 * 296 + 2 * 276) / 4

    run(fake_card, SMALL, main)


def test_only_sinks_are_shared(fake_card: ModelCard) -> None:
    async def main(session: aiohttp.ClientSession, server: Server) -> None:
        async def cached(**fields: Any) -> int:
            _, usage = await ask(session, server, **body(LONG[:80], **fields))
            count: int = usage["prompt_tokens_details"]["cached_tokens"]
            return count

        wide = WINDOW | {"kv_sinks": 10, "kv_budget": 40}
        assert [await cached(**each) for each in (WINDOW, HEAVY, wide, wide)] == [0, 4, 4, 12]
        assert await cached() == 12, "what they left is as good as any"
        assert await cached() == 76
        assert await cached(**WINDOW) == 4

    run(fake_card, ROOMY, main)


PLACES = ("harbour", "station", "market", "school", "bridge", "garden", "library", "theatre")
STORY = "The old lighthouse keeper wrote every evening what he had seen. " + " ".join(
    f"On day {k} he saw {3 + k * 7 % 50} ships and walked to the {PLACES[k * 5 % 8]}." for k in range(62)
)
BACKENDS = [
    pytest.param('backend = "torch"', marks=pytest.mark.nightly, id="torch"),
    pytest.param('backend = "host"\nweights = "int8"', id="host"),
]


@pytest.mark.model
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_real_model_answers_a_prompt_that_is_longer_than_the_pool(
    model_card: ModelCard, backend: str
) -> None:
    device = f'[device]\ndevice = "cpu"\nblock_size = 16\nmax_num_batched_tokens = 128\n{backend}\n'
    asked = {"prompt": STORY, "max_tokens": 20, "temperature": 0, "ignore_eos": True}

    async def main() -> None:
        async with serving(model_card, toml=device + "num_blocks = 20\n") as server:
            async with aiohttp.ClientSession() as session:
                error = await refused(session, server, **asked)
                assert error["code"] == "kv_capacity_exceeded"
                for kind in ("sink_window", "heavy_hitter"):
                    text, usage = await ask(session, server, **asked, kv_eviction=kind, kv_budget=160)
                    assert usage["prompt_tokens"] > 1000 and usage["completion_tokens"] == 20
                    assert usage["kv_dropped_tokens"] > 840 and text.strip()
            await server.rest()

    asyncio.run(main())


@pytest.mark.model
def test_the_real_model_sees_the_same_window_alone_and_among_others(model_card: ModelCard) -> None:
    """Greedy in fp32: what a query sees is the same; sums over a shifted table are only nearly so."""
    device = '[device]\ndevice = "cpu"\ndtype = "float32"\nmax_num_batched_tokens = 64\nnum_blocks = '
    asked = [
        {"prompt": STORY[40 * k :][:600], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        for k in range(2)
    ]

    async def texts(num_blocks: int, is_alone: bool, kv_budget: int) -> list[str]:
        more = {"kv_eviction": "sink_window", "kv_budget": kv_budget}
        async with (
            serving(model_card, toml=f"{device}{num_blocks}\n") as server,
            aiohttp.ClientSession() as s,
        ):
            if is_alone:
                return [(await ask(s, server, **fields, **more))[0] for fields in asked]
            answers = await asyncio.gather(*(ask(s, server, **fields, **more) for fields in asked))
            assert all(usage["kv_dropped_tokens"] > 60 for _, usage in answers)
            return [text for text, _ in answers]

    assert asyncio.run(texts(16, False, 96)) == asyncio.run(texts(200, True, 96))
