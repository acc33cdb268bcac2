"""Structured output through the whole server, of a random model: HTTP, websocket and the official client."""

import asyncio
import json
import re
from typing import Any, Literal

import aiohttp
import openai
import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.config import loads
from pipeline.embedded import Engine
from pipeline.errors import RequestError
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import Runner, build_runner
from pipeline.grammar import CompiledGrammars
from pipeline.grammar.library import TokenizerSpec
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import FakeRunner
from tests.e2e.saying import ROOM
from tests.e2e.world import Server, serving
from tests.gpu.driver import TINY, random_tensors

BYTES = replace(TINY, vocab_size=byte_card().architecture.vocab_size)
TOML = "[stages.ingress.options]\ngrammar_timeout_s = 0.5\n"
MESSAGES: Any = [{"role": "user", "content": "Who?"}]
SLOW = {"type": "integer", "multipleOf": 99999989}


def card() -> ModelCard:
    return byte_card(max_position=BYTES.max_position)


def random_runner() -> Runner:
    """Says anything that it may."""
    options = RunnerOptions(
        device="cpu", dtype="float32", backend="torch", num_blocks=256, max_num_seqs=16, max_model_len=1024
    )
    spec = TokenizerSpec(card().tokenizer_json, BYTES.vocab_size, card().eos_ids)
    return build_runner(BYTES, random_tensors(BYTES), options, grammars=CompiledGrammars(spec))


async def post(session: aiohttp.ClientSession, server: Server, **fields: Any) -> tuple[int, Any]:
    body = {"messages": MESSAGES, "max_tokens": 300, "temperature": 1} | fields
    async with session.post(f"{server.url}/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.json()


def test_a_slow_grammar_is_refused_and_hurts_nobody() -> None:
    async def main() -> None:
        async with serving(card(), random_runner, TOML) as server, aiohttp.ClientSession() as session:
            good = {"regex": "[a-f]{20}"}
            refused, answers = post(session, server, structured_outputs={"json": SLOW}), []
            trying = asyncio.create_task(refused)
            while not trying.done():
                status, body = await post(session, server, max_tokens=5)
                assert status == 200
                answers.append(body)
                await asyncio.sleep(0)
            assert len(answers) > 3, "others are served meanwhile"
            status, body = await trying
            assert (status, body["error"]["code"]) == (400, "invalid_grammar")
            assert body["error"]["param"] == "structured_outputs.json"
            assert "more than 0.5 s" in body["error"]["message"]
            status, body = await post(session, server, structured_outputs=good)
            assert status == 200
            assert re.fullmatch(good["regex"], body["choices"][0]["message"]["content"])
            assert server.num_live == 0

    asyncio.run(main())


def test_on_a_websocket_and_a_completion() -> None:
    async def main() -> None:
        async with serving(card(), random_runner, TOML) as server, aiohttp.ClientSession() as session:
            async with session.ws_connect(f"{server.url}/v1/stream") as socket:
                ask = {"type": "generate", "prompt": "x", "max_tokens": 90, "temperature": 1}
                await socket.send_json({**ask, "id": "a", "structured_outputs": {"choice": ["red", "blue"]}})
                await socket.send_json({**ask, "id": "b", "structured_outputs": {"regex": "(("}})
                texts, ended = "", {}
                while len(ended) < 2:
                    frame = await socket.receive_json(timeout=30)
                    texts += frame.get("text", "")
                    if frame["type"] in ("done", "error"):
                        ended[frame["id"]] = frame
            assert texts in ("red", "blue")
            assert ended["b"]["error"]["code"] == "invalid_grammar"
            body = {"prompt": "x", "temperature": 1, "structured_outputs": {"grammar": 'start: "a" "b"+'}}
            async with session.post(f"{server.url}/v1/completions", json=body) as answer:
                choice = (await answer.json())["choices"][0]
            assert re.fullmatch("ab+", choice["text"])

    asyncio.run(main())


class Person(BaseModel):
    kind: Literal["person", "robot"]
    age: int | None
    is_here: bool


def test_the_official_client_parses(fake_card: ModelCard) -> None:
    def talk(client: openai.OpenAI) -> None:
        parsed = client.chat.completions.parse(
            model="fake", messages=MESSAGES, response_format=Person, temperature=1, max_tokens=300
        )
        message = parsed.choices[0].message
        assert isinstance(message.parsed, Person)
        assert message.content is not None and json.loads(message.content) == message.parsed.model_dump()
        with client.chat.completions.stream(
            model="fake", messages=MESSAGES, response_format=Person, temperature=1, max_tokens=300
        ) as stream:
            final = stream.get_final_completion()
        assert isinstance(final.choices[0].message.parsed, Person)
        with pytest.raises(openai.BadRequestError, match="cannot be used"):
            client.completions.create(
                model="fake", prompt="x", extra_body={"structured_outputs": {"regex": "["}}
            )

    async def main() -> None:
        async with serving(card(), random_runner, TOML) as server:
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key="ann") as client:
                await asyncio.to_thread(talk, client)

    asyncio.run(main())


def test_in_a_program_without_a_server() -> None:
    """Any number of them at a time: they are tried one after the other, and nobody is sent away."""

    async def main() -> None:
        config = loads("", "test.toml")
        async with Engine(config, card(), RunnerFactory(random_runner)) as engine:
            patterns = [f"[a-{end}]{{4}}" for end in "bcdefghi" * 5]
            asked = [
                engine.generate(messages=MESSAGES, max_tokens=20, structured_outputs={"regex": pattern})
                for pattern in patterns
            ]
            for pattern, answer in zip(patterns, await asyncio.gather(*asked), strict=True):
                assert re.fullmatch(pattern, answer.text)
            with pytest.raises(RequestError, match="cannot be used") as refused:
                await engine.generate(messages=MESSAGES, structured_outputs={"json": SLOW})
            assert refused.value.param == "structured_outputs.json"

    asyncio.run(main())


def test_without_the_extra_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.grammar.door.is_installed", lambda: False)

    async def main() -> None:
        async with serving(card(), lambda: FakeRunner(ROOM)) as server, aiohttp.ClientSession() as session:
            status, body = await post(session, server, response_format={"type": "json_object"})
            assert (status, body["error"]["code"]) == (400, "structured_output_not_installed")
            assert (await post(session, server, max_tokens=3))[0] == 200

    asyncio.run(main())
