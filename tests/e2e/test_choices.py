"""Several choices of one answer, over real sockets: n, several prompts, echo, reasoning."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from pipeline.checkpoint.card import ModelCard
from pipeline.runtime.testing import FakeRunner
from tests.e2e.saying import ROOM, SayingRunner
from tests.e2e.world import Server, serving

Visit = Callable[[Server, aiohttp.ClientSession], Awaitable[None]]


def run(card: ModelCard, visit: Visit, runner: Any = None, toml: str = "") -> None:
    async def main() -> None:
        async with serving(card, lambda: runner or FakeRunner(ROOM), toml) as server:
            async with aiohttp.ClientSession() as session:
                await visit(server, session)
            await server.rest()

    asyncio.run(main())


async def whole(server: Server, session: aiohttp.ClientSession, **body: Any) -> Any:
    asked = {"max_tokens": 12, "ignore_eos": True, "seed": 5, **body}
    async with session.post(f"{server.url}/v1/completions", json=asked) as answer:
        return await answer.json() | {"status": answer.status}


async def streamed(server: Server, session: aiohttp.ClientSession, path: str, **body: Any) -> list[Any]:
    asked = {"max_tokens": 12, "ignore_eos": True, "seed": 5, "stream": True, **body}
    async with session.post(server.url + path, json=asked) as answer:
        lines = [line async for line in answer.content if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]\n" and lines.count(b"data: [DONE]\n") == 1
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_each_choice_is_as_if_alone(fake_card: ModelCard) -> None:
    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        alone = [
            (await whole(server, session, prompt=prompt, seed=5 + k))["choices"][0]["text"]
            for prompt in ("Hello", "Good evening")
            for k in range(3)
        ]
        assert len(set(alone)) > 3
        asked: dict[str, Any] = {"prompt": ["Hello", "Good evening"], "n": 3}
        body = await whole(server, session, **asked)
        assert [choice["text"] for choice in body["choices"]] == alone
        assert [choice["index"] for choice in body["choices"]] == list(range(6))
        prompt_tokens = len("Hello") + len("Good evening")
        assert body["usage"]["prompt_tokens"] == prompt_tokens and body["usage"]["completion_tokens"] == 72
        *chunks, last = await streamed(
            server, session, "/v1/completions", stream_options={"include_usage": True}, **asked
        )
        texts, reasons = [""] * 6, [None] * 6
        for chunk in chunks:
            (choice,) = chunk["choices"]
            assert chunk["id"] == last["id"] and reasons[choice["index"]] is None
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"]
        assert texts == alone and reasons == ["length"] * 6
        assert last["usage"] == body["usage"] | {"prompt_tokens_details": {"cached_tokens": 0}}

    run(fake_card, visit, toml="[stages.schedule.options]\nprefix_cache = false\n")


def test_all_or_none_get_in(fake_card: ModelCard) -> None:
    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        body = await whole(server, session, prompt="Hello", n=5)
        assert (body["status"], body["error"]["code"]) == (429, "too_many_requests")
        assert len((await whole(server, session, prompt="Hello", n=4))["choices"]) == 4

    run(fake_card, visit, toml="[stages.ingress.options]\nmax_live_requests = 4\n")


def test_one_that_is_refused_refuses_the_answer(fake_card: ModelCard) -> None:
    """The second prompt is over what tokenize takes; nothing of the first is left behind."""

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        for stream in (False, True):
            body = await whole(server, session, prompt=["Hello", "x" * 3000], stream=stream)
            assert (body["status"], body["error"]["code"]) == (413, "prompt_too_large")

    run(fake_card, visit, toml="[stages.tokenize.options]\nmax_prompt_bytes = 1000\n")


def test_echo(fake_card: ModelCard) -> None:
    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        plain = (await whole(server, session, prompt="Hello"))["choices"][0]["text"]
        body = await whole(server, session, prompt="Hello", echo=True, logprobs=0)
        assert body["choices"][0]["text"] == "Hello" + plain
        chunks = await streamed(server, session, "/v1/completions", prompt="Hello", echo=True)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello" + plain

    run(fake_card, visit)


def test_reasoning(fake_card: ModelCard) -> None:
    text = "<think>\nTwo and two.\n</think>\n\nFour."
    toml = "[stages.ingress.options]\nreasoning = {}\n[stages.stream.options]\nflush_tokens = 1\n"
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "2 + 2?"}],
        "max_tokens": 90,
        "seed": 1,
        "ignore_eos": False,
    }

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        for splits in (True, False):
            chunks = await streamed(
                server, session, "/v1/chat/completions", separate_reasoning=splits, **asked
            )
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
            thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
            said = "".join(delta.get("content", "") for delta in deltas)
            assert (thought, said) == (("Two and two.\n", "Four.") if splits else ("", text))
        async with session.post(f"{server.url}/v1/chat/completions", json=asked) as answer:
            message = (await answer.json())["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Two and two.\n", "Four.")

    run(fake_card, visit, SayingRunner({1: text}), toml)


def test_stop_strings_end_the_answer_not_the_reasoning(fake_card: ModelCard) -> None:
    text = "<think>Four? Four.</think>It is Four. Or is it?"
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "2 + 2?"}],
        "max_tokens": 90,
        "seed": 1,
        "ignore_eos": False,
        "stop": ["Four"],
    }

    def visit_by(said: tuple[str, str]) -> Visit:
        async def visit(server: Server, session: aiohttp.ClientSession) -> None:
            async with session.post(f"{server.url}/v1/chat/completions", json=asked) as answer:
                (choice,) = (await answer.json())["choices"]
            message = choice["message"]
            assert (message["reasoning_content"] or "", message["content"]) == said
            assert choice["finish_reason"] == "stop"

        return visit

    for options, said in (("", ("Four? Four.", "It is ")), ("stops_inside = true", ("", ""))):
        toml = f"[stages.ingress.options]\nreasoning = {{ {options} }}\n"
        run(fake_card, visit_by(said), SayingRunner({1: text}), toml)
