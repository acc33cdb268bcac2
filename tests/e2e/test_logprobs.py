"""Logprobs at every door, whole and streamed, of a small random model."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from tests.e2e.world import serving
from tests.tiny_models import write_folder

DEVICE = """
[device]
device = "cpu"
placement = "thread"
backend = "torch"
dtype = "float32"
num_blocks = 100
max_num_seqs = 4
max_num_batched_tokens = 64
"""
PLAIN = {"temperature": 1, "seed": 5, "max_tokens": 9, "logprobs": 2, "prompt": "hello"}
CHAT = {
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 1,
    "seed": 6,
    "max_tokens": 7,
    "logprobs": True,
    "top_logprobs": 3,
}


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    folder = write_folder(tmp_path_factory.mktemp("model"))
    return describe(folder, str(folder))


def run(card: ModelCard, check: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving(card, toml=DEVICE) as server:
            async with aiohttp.ClientSession(server.url) as session:
                await check(session)
            await server.rest()

    asyncio.run(main())


async def choice(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(path, json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        only: dict[str, Any] = answer["choices"][0]
        return only


async def streamed(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The logprobs of all chunks that have some."""
    async with session.post(path, json=body | {"stream": True}) as response:
        lines = (await response.text()).splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return [told for chunk in chunks if (told := chunk["choices"][0]["logprobs"])]


def test_completions(card: ModelCard) -> None:
    async def check(session: aiohttp.ClientSession) -> None:
        whole = await choice(session, "/v1/completions", PLAIN)
        told = whole["logprobs"]
        tokens, values = told["tokens"], told["token_logprobs"]
        assert len(tokens) == len(values) == 9 and all(-100 < each <= 0 for each in values)
        assert told["text_offset"] == [len("".join(tokens[:k])) for k in range(9)]
        for token, value, top in zip(tokens, values, told["top_logprobs"], strict=True):
            assert "\ufffd" in token or (top[token] == value and 2 <= len(top) <= 3)
        parts = await streamed(session, "/v1/completions", PLAIN)
        for name in told:
            assert [each for part in parts for each in part[name]] == told[name]
        only = await choice(session, "/v1/completions", PLAIN | {"logprobs": 0})
        assert [len(top) for top in only["logprobs"]["top_logprobs"]] == [1] * 9
        assert (await choice(session, "/v1/completions", PLAIN | {"logprobs": None}))["logprobs"] is None

    run(card, check)


def test_chat_and_websocket(card: ModelCard) -> None:
    async def check(session: aiohttp.ClientSession) -> None:
        answer = await choice(session, "/v1/chat/completions", CHAT)
        content = answer["logprobs"]["content"]
        spelled = b"".join(bytes(each["bytes"]) for each in content)
        assert spelled.decode(errors="replace") == answer["message"]["content"] and len(content) == 7
        for each in content:
            values = [top["logprob"] for top in each["top_logprobs"]]
            assert len(values) == 3 and values == sorted(values, reverse=True)
            assert each["logprob"] <= values[0]
        parts = await streamed(session, "/v1/chat/completions", CHAT)
        assert [each for part in parts for each in part["content"]] == content
        async with session.ws_connect("/v1/stream") as ws:
            await ws.send_json({"type": "generate", "id": "a"} | CHAT)
            frames = [await ws.receive_json()]
            while frames[-1]["type"] != "done":
                frames.append(await ws.receive_json())
        assert [each for frame in frames for each in frame.get("logprobs", [])] == content

    run(card, check)


def test_a_stop_string_takes_its_tokens_text_and_not_their_logprobs(card: ModelCard) -> None:
    async def check(session: aiohttp.ClientSession) -> None:
        whole = await choice(session, "/v1/completions", PLAIN | {"temperature": 0})
        stop = whole["logprobs"]["tokens"][4]
        first = whole["logprobs"]["tokens"].index(stop)
        cut = await choice(session, "/v1/completions", PLAIN | {"temperature": 0, "stop": stop})
        assert cut["finish_reason"] == "stop"
        assert cut["logprobs"]["tokens"] == whole["logprobs"]["tokens"][: first + 1]

    run(card, check)
