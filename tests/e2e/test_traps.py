"""Requests that ended other servers, or that they answered wrongly, asked of a whole one (docs/traps.md)."""

import asyncio
import io
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.messages import DeviceReady
from pipeline.runtime.testing import FakeRunner
from tests.e2e.scraped import scrape
from tests.e2e.world import Server, serving

ROOT = Path(__file__).parents[2]
ROOM = DeviceReady(num_blocks=4096, block_size=16, max_num_seqs=64, max_num_batched_tokens=2048)
ROOMY = """
[stages.ingress.options]
max_live_requests = {0}
[stages.tokenize]
inbox = {0}
[stages.schedule.options]
max_waiting = {0}
"""
NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
    "n",
    "logprobs",
    "priority",
    "patience_ms",
    "ttft_target_ms",
    "tpot_target_ms",
    "kv_budget",
    "kv_sinks",
    "truncate_prompt_tokens",
)
NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"NaN"', "[NaN]", "1e400")
STRICT = (
    "{% for message in messages %}"
    "{% if loop.index0 % 2 != (message['role'] == 'assistant') %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "<|turn|>{{ message['content'] }}{% endfor %}"
)

Visit = Callable[[Server, aiohttp.ClientSession], Awaitable[None]]


def run(card: ModelCard, visit: Visit, toml: str = "", capacity: DeviceReady = ROOM) -> None:
    async def main() -> None:
        async with serving(card, lambda: FakeRunner(capacity), toml) as server:
            async with aiohttp.ClientSession() as session:
                await visit(server, session)
            await server.rest()

    asyncio.run(main())


async def post(session: aiohttp.ClientSession, server: Server, body: Any, path: str = "completions") -> Any:
    """Status and answer."""
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with session.post(f"{server.url}/v1/{path}", data=data) as response:
        return response.status, await response.json()


async def lives(session: aiohttp.ClientSession, server: Server) -> None:
    """The server answers as ever."""
    status, answer = await post(session, server, {"prompt": "Hi", "max_tokens": 2, "ignore_eos": True})
    assert status == 200 and answer["usage"]["completion_tokens"] == 2


def test_an_empty_prompt_costs_nobody_else_anything(fake_card: ModelCard) -> None:
    """15"""

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        beside = asyncio.create_task(
            post(session, server, {"prompt": "Hi", "max_tokens": 200, "ignore_eos": True})
        )
        for prompt in ("", [], ["", "a"], ["a", ""], [[]]):
            for stream in (False, True):
                status, answer = await post(session, server, {"prompt": prompt, "stream": stream})
                assert (status, answer["error"]["param"]) == (400, "prompt"), prompt
        for content in ("", []):
            status, _ = await post(
                session,
                server,
                {"messages": [{"role": "user", "content": content}], "max_tokens": 1},
                "chat/completions",
            )
            assert status in (200, 400)
        assert (await beside)[1]["usage"]["completion_tokens"] == 200
        await lives(session, server)

    run(fake_card, visit)


def test_a_length_that_does_not_fit_is_named_with_its_numbers() -> None:
    """17: 8 and 2040 are exactly 2048; one more is refused, and the message has the true limit."""

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        ask = {"prompt": "12345678", "ignore_eos": True}
        status, answer = await post(session, server, ask | {"max_tokens": 2045})
        message = answer["error"]["message"]
        assert status == 400 and all(number in message for number in ("2048", "2045", "8"))
        assert answer["error"]["code"] == "context_length_exceeded"
        assert (await post(session, server, ask | {"max_tokens": 2041}))[0] == 400
        status, answer = await post(session, server, ask | {"max_tokens": 2040})
        assert (status, answer["usage"]["total_tokens"]) == (200, 2048)

    run(byte_card(2048), visit)


def test_no_tokens_are_never_one(fake_card: ModelCard) -> None:
    """19"""

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        for more in ({}, {"echo": True}, {"echo": True, "logprobs": 1}, {"stream": True}):
            status, answer = await post(session, server, {"prompt": "Hi", "max_tokens": 0, **more})
            assert (status, answer["error"]["param"]) == (400, "max_tokens")
        assert server.scheduler.num_steps == 0

    run(fake_card, visit)


def test_what_is_no_number_is_refused_in_every_field_on_every_door(fake_card: ModelCard) -> None:
    """21"""

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(f"{server.url}/v1/stream") as ws:
            for field in NUMBERS:
                for value in NO_NUMBERS:
                    tail = f'"{field}": {value}}}'
                    status, answer = await post(session, server, f'{{"prompt": "a", {tail}'.encode())
                    assert status == 400 and answer["error"]["code"] in ("invalid_json", "invalid_value"), (
                        tail
                    )
                    await ws.send_str(f'{{"type": "generate", "id": "a", "prompt": "a", {tail}')
                    assert (await ws.receive_json(timeout=10))["type"] == "error", tail
        for value in NO_NUMBERS[:6]:
            bias = f'{{"prompt": "a", "logit_bias": {{"5": {value}}}}}'
            assert (await post(session, server, bias.encode()))[0] == 400
        assert server.scheduler.num_steps == 0
        await lives(session, server)

    run(fake_card, visit)


def test_what_the_server_lacks_is_refused_by_name(fake_card: ModelCard) -> None:
    """24, and 25: an empty nucleus."""

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        for more in (
            {"top_p": 0},
            {"use_beam_search": True},
            {"suffix": "x"},
            {"prompt_logprobs": 1, "stream": True},
            {"cache_pin": True},
            {"top_q": 1},
        ):
            status, answer = await post(session, server, {"prompt": "a", **more})
            assert (status, answer["error"]["param"]) == (400, next(iter(more))), answer
        await lives(session, server)

    run(fake_card, visit)


def test_twins_without_a_seed_differ_and_choices_too(fake_card: ModelCard) -> None:
    """32: in one batch, at temperature 1."""

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        ask = {"prompt": "Hi", "max_tokens": 16, "ignore_eos": True}
        answers = await asyncio.gather(*(post(session, server, ask) for _ in range(8)))
        answers.append(await post(session, server, ask | {"n": 8}))
        texts = [choice["text"] for _, answer in answers for choice in answer["choices"]]
        assert len(texts) == 16 and len(set(texts)) > 12

    run(fake_card, visit)


def test_a_strict_template_s_refusal_is_a_400(fake_card: ModelCard) -> None:
    """40: on both doors, in the template's words."""
    two = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        for stream in (False, True):
            status, answer = await post(
                session, server, {"messages": two, "stream": stream}, "chat/completions"
            )
            assert status == 400 and "Roles must alternate." in answer["error"]["message"]
        odd = {"messages": [two[0], {"role": "assistant", "content": "", "tool_calls": []}]}
        assert (await post(session, server, odd | {"max_tokens": 1}, "chat/completions"))[0] in (200, 400)
        async with session.ws_connect(f"{server.url}/v1/stream") as ws:
            await ws.send_json({"type": "generate", "id": "a", "messages": two})
            frames = [await ws.receive_json(timeout=10)]
            while frames[-1]["type"] not in ("error", "done"):
                frames.append(await ws.receive_json(timeout=10))
            assert "Roles must alternate." in frames[-1]["error"]["message"]
        await lives(session, server)

    run(replace(fake_card, chat_template=STRICT), visit)


def test_a_huge_text_holds_up_nobody(fake_card: ModelCard) -> None:
    """42: 27 MB, again and again, are refused unread; what is let in is tokenized off the loop."""
    large, most = b'{"prompt":"' + b"a b " * 6_800_000 + b'"}', "a b " * 250_000

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        async def send() -> None:
            for _ in range(3):
                with suppress(aiohttp.ClientConnectionError):  # closed while it was still sending
                    assert (await post(session, server, large))[0] == 413
                assert (await post(session, server, {"prompt": most}))[0] == 400

        sending = asyncio.create_task(send())
        times = []
        while not sending.done():
            times.append(await ready_ms(session, server))
            await asyncio.sleep(0.05)
        await sending
        assert len(times) > 3 and sorted(times)[int(len(times) * 0.9)] < 100, sorted(times)[-5:]

    run(fake_card, visit)


async def ready_ms(session: aiohttp.ClientSession, server: Server) -> float:
    begin = time.perf_counter()
    async with session.get(f"{server.url}/ready") as response:
        assert response.status == 200
    return (time.perf_counter() - begin) * 1e3


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.nightly)])
def test_many_streams_and_the_server_still_answers(fake_card: ModelCard, count: int) -> None:
    """43: while they stream. 62: each ends as it should. They are read by another process."""
    capacity = replace(ROOM, num_blocks=16_384, max_num_seqs=count)
    body = json.dumps({"prompt": "Hi", "max_tokens": 60, "ignore_eos": True, "stream": True})

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        port = server.url.rpartition(":")[2]
        command = [sys.executable, "-m", "tests.e2e.crowd", port, str(count), body]
        crowd = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
        reading = asyncio.create_task(crowd.communicate())
        times = []
        while not reading.done():
            if server.num_live:
                times.append(await ready_ms(session, server))
            await asyncio.sleep(0.02)
        assert int((await reading)[0]) == count
        assert times and sorted(times)[len(times) // 2] < 100, sorted(times)
        page = await scrape(session, server)
        assert page.total("stageline_requests_total") == count

    run(fake_card, visit, ROOMY.format(2 * count), capacity)
