"""/v1/requests/{id}, /tokenize and /detokenize, over real sockets."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.core.keys import fingerprint
from pipeline.messages import SEGMENTS
from pipeline.runtime.testing import FakeRunner
from tests.e2e.saying import ROOM
from tests.e2e.test_choices import run
from tests.e2e.world import Server, serving


def slow_runner() -> FakeRunner:
    return FakeRunner(ROOM, before_step=lambda plan: time.sleep(0.005))


async def get(session: aiohttp.ClientSession, url: str, **headers: str) -> tuple[int, Any]:
    async with session.get(url, headers=headers) as answer:
        return answer.status, await answer.json()


def test_where_a_request_is_and_what_became_of_it(fake_card: ModelCard) -> None:
    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        body = {"prompt": "Hello", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 2}
        async with session.post(f"{server.url}/v1/completions", json=body) as answer:
            lines = answer.content
            first = json.loads((await lines.readline())[6:])
            url = f"{server.url}/v1/requests/{first['id']}"
            status, live = await get(session, url)
            assert status == 200 and [each["status"] for each in live["choices"]] == ["live", "live"]
            async with session.delete(url) as cancelled:
                told = (await cancelled.json())["choices"]
                assert [each["status"] for each in told] == ["cancelling", "cancelling"]
            rest = [json.loads(line[6:]) async for line in lines if line.startswith(b"data: {")]
        reasons = {chunk["choices"][0]["index"]: chunk["choices"][0]["finish_reason"] for chunk in rest}
        assert reasons == {0: "cancelled", 1: "cancelled"}
        _, ended = await get(session, url)
        (choice,) = ended["choices"]
        assert choice["status"] == "ended" and choice["finish_reason"] == "cancelled"
        assert 0 < choice["completion_tokens"] < 400 and choice["prompt_tokens"] == 5
        assert tuple(choice["segments_ms"]) == SEGMENTS
        assert sum(choice["segments_ms"].values()) == pytest.approx(choice["e2e_ms"])
        async with session.delete(url) as again:
            assert (await again.json())["choices"] == []

    run(fake_card, visit, slow_runner())


def test_what_is_not_there_or_not_yours(fake_card: ModelCard, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("".join(f'[{name}]\nsha256 = "{fingerprint(name)}"\n' for name in ("ann", "bob")))
    toml = f'[stages.ingress.options]\nkeys_file = "{keys}"\n'

    async def main() -> None:
        async with (
            serving(fake_card, lambda: FakeRunner(ROOM), toml) as server,
            aiohttp.ClientSession() as session,
        ):
            ann, bob = {"Authorization": "Bearer ann"}, {"Authorization": "Bearer bob"}
            body = {"prompt": "Hello", "max_tokens": 4}
            async with session.post(f"{server.url}/v1/completions", json=body, headers=ann) as answer:
                name = (await answer.json())["id"]
            assert (await get(session, f"{server.url}/v1/requests/{name}", **ann))[0] == 200
            others = (name, name[:-1], "cmpl-x-1", "-", "a" * 300, name.replace("cmpl", "evil"), name + "é")
            for other in others:
                status, told = await get(session, f"{server.url}/v1/requests/{other}", **bob)
                assert (status, told["error"]["code"]) == (404, "request_not_found")
            async with session.delete(f"{server.url}/v1/requests/{name}", headers=bob) as refused:
                assert refused.status == 404

    asyncio.run(main())


def test_tokens(fake_card: ModelCard) -> None:
    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        async def post(path: str, body: Any) -> tuple[int, Any]:
            async with session.post(server.url + path, json=body) as answer:
                return answer.status, await answer.json()

        status, told = await post("/tokenize", {"prompt": "Héllo"})
        assert status == 200 and told["tokens"] == list("Héllo".encode())
        assert (told["count"], told["max_model_len"]) == (6, 8192)
        assert await post("/detokenize", {"tokens": told["tokens"]}) == (200, {"prompt": "Héllo"})
        _, chat = await post("/tokenize", {"messages": [{"role": "user", "content": "<|over|>"}]})
        _, text = await post("/detokenize", {"tokens": chat["tokens"]})
        assert text["prompt"] == "<|turn|>user\n<|over|><|over|>\n<|turn|>assistant\n"
        assert chat["tokens"].count(258) == 1, "a client's text is no marker"
        for path, body, param in (
            ("/tokenize", {}, "prompt"),
            ("/tokenize", {"prompt": [1]}, "prompt"),
            ("/tokenize", {"prompt": "a", "add_special_tokens": 2}, "add_special_tokens"),
            ("/tokenize", {"prompt": "a", "more": 1}, "more"),
            ("/detokenize", {"tokens": [259]}, "tokens"),
            ("/detokenize", {"tokens": "a"}, "tokens"),
            ("/detokenize", {"tokens": []}, "tokens"),
            ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ):
            status, told = await post(path, body)
            assert (status, told["error"]["param"]) == (400, param), body
        status, told = await post("/tokenize", {"prompt": "x" * 2000})
        assert (status, told["error"]["code"]) == (413, "prompt_too_large")

    run(fake_card, visit, toml="[stages.tokenize.options]\nmax_prompt_bytes = 1000\n")
