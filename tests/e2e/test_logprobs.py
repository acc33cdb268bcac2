"""Logprobs at every door, whole and streamed, of a small random model."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import torch

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from pipeline.gpu.weights.load import load_tensors
from tests.e2e.world import serving
from tests.gpu.oracle import hugging_face
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


def run(
    card: ModelCard, check: Callable[[aiohttp.ClientSession], Awaitable[None]], toml: str = DEVICE
) -> None:
    async def main() -> None:
        async with serving(card, toml=toml) as server:
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


LONG = "It was a bright cold day in April, and the clocks were striking thirteen. " * 2
SCORED = {"prompt": LONG, "max_tokens": 3, "temperature": 0, "prompt_logprobs": 2}
DEVICES = {
    "thread": DEVICE,
    "process": DEVICE.replace('placement = "thread"', 'placement = "process"'),
    "split": DEVICE + '[stages.schedule.options]\nseparation = "split"\n',
}


def expected_values(card: ModelCard, token_ids: list[int]) -> torch.Tensor:
    """[n - 1, V]: of the token after each of them, by transformers."""
    model = hugging_face(card.architecture, load_tensors(card))
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([token_ids])).logits[0, :-1].float(), -1)


@pytest.mark.parametrize("toml", DEVICES.values(), ids=DEVICES)
def test_of_the_prompt(card: ModelCard, toml: str) -> None:
    async def check(session: aiohttp.ClientSession) -> None:
        asked = [{"prompt": LONG, "max_tokens": 3, "temperature": 0}, *[SCORED] * 4]
        plain, *answers = await asyncio.gather(*(choice(session, "/v1/completions", body) for body in asked))
        assert all(each == answers[0] for each in answers) and "prompt_logprobs" not in plain
        assert answers[0]["text"] == plain["text"] and answers[0]["logprobs"] is None
        async with session.post("/tokenize", json={"prompt": LONG}) as response:
            token_ids = (await response.json())["tokens"]
        assert len(token_ids) > 64, "more than a step tells of"
        first, *told = answers[0]["prompt_logprobs"]
        assert first is None and len(told) == len(token_ids) - 1
        wanted = expected_values(card, token_ids)
        for each, token_id, row in zip(told, token_ids[1:], wanted, strict=True):
            assert abs(each["logprob"] - float(row[token_id])) < 1e-3
            best = [top["logprob"] for top in each["top_logprobs"]]
            assert best == pytest.approx(row.topk(2).values.tolist(), abs=1e-3)

    run(card, check, toml)


def test_an_echo_is_told_with_its_prompt(card: ModelCard) -> None:
    async def check(session: aiohttp.ClientSession) -> None:
        scored = await choice(session, "/v1/completions", SCORED)
        echoed = await choice(
            session, "/v1/completions", SCORED | {"prompt_logprobs": None, "echo": True, "logprobs": 1}
        )
        told, prompt = echoed["logprobs"], scored["prompt_logprobs"]
        assert "prompt_logprobs" not in echoed and echoed["text"] == LONG + scored["text"]
        num_prompt = len(prompt)
        assert len(told["tokens"]) == num_prompt + 3
        assert told["token_logprobs"][:num_prompt] == [None, *(each["logprob"] for each in prompt[1:])]
        assert told["top_logprobs"][0] is None and told["text_offset"][0] == 0
        assert told["tokens"][1:num_prompt] == [each["token"] for each in prompt[1:]]

    run(card, check)


def test_they_are_not_streamed(card: ModelCard) -> None:
    async def check(session: aiohttp.ClientSession) -> None:
        async with session.post("/v1/completions", json=SCORED | {"stream": True}) as response:
            answer = await response.json()
        assert response.status == 400 and answer["error"]["param"] == "prompt_logprobs"

    run(card, check)
