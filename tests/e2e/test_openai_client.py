"""The official Python client, sync and async, streaming and not, its error classes and its retries."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.core.keys import fingerprint
from pipeline.runtime.testing import FakeRunner
from tests.e2e.saying import ROOM, SayingRunner
from tests.e2e.world import Server, serving

MESSAGES: Any = [{"role": "user", "content": "Say it"}]
TEXT = "All queues are bounded."
Talk = Callable[[openai.OpenAI], None]


def client_of(server: Server, key: str = "ann", **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, **more)


def run(card: ModelCard, talk: Talk, toml: str = "", runner: Any = None, **more: Any) -> None:
    """`talk` runs in a thread, as the sync client's own program would."""

    async def main() -> None:
        async with serving(card, lambda: runner or SayingRunner({1: TEXT, 2: "Two."}), toml) as server:
            with client_of(server, **more) as client:
                await asyncio.to_thread(talk, client)

    asyncio.run(main())


def test_sync(fake_card: ModelCard) -> None:
    def talk(client: openai.OpenAI) -> None:
        (model,) = client.models.list().data
        assert client.models.retrieve(model.id).id == "fake"
        chat = client.chat.completions.create(model="fake", messages=MESSAGES, seed=1, max_tokens=60)
        (choice,) = chat.choices
        assert (choice.message.content, choice.message.role, choice.finish_reason) == (
            TEXT,
            "assistant",
            "stop",
        )
        assert chat.usage is not None and chat.usage.total_tokens > chat.usage.completion_tokens > 0
        whole = client.completions.create(model="fake", prompt="Say it", seed=1, n=2, max_tokens=60)
        assert [choice.text for choice in whole.choices] == [TEXT, "Two."]
        stream = client.chat.completions.create(
            model="fake", messages=MESSAGES, seed=1, max_tokens=60, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = list(stream)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        usage = chunks[-1].usage
        assert said == TEXT and usage is not None and usage.total_tokens == chat.usage.total_tokens

    run(fake_card, talk)


def test_async(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, lambda: SayingRunner({1: TEXT})) as server:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="ann") as client:
                stream = await client.completions.create(
                    model="fake", prompt="Say it", seed=1, max_tokens=60, stream=True
                )
                said = "".join([chunk.choices[0].text async for chunk in stream])
                assert said == TEXT
                left = await client.completions.create(
                    model="fake", prompt="Say it", seed=1, max_tokens=60, stream=True
                )
                await left.close()
            await server.rest()

    asyncio.run(main())


def test_logprobs(fake_card: ModelCard) -> None:
    """The client can read what a server without probabilities says: none."""

    def talk(client: openai.OpenAI) -> None:
        chat = client.chat.completions.create(
            model="fake", messages=MESSAGES, seed=1, max_tokens=5, logprobs=True, top_logprobs=2
        )
        assert chat.choices[0].logprobs is None

    run(fake_card, talk)


def test_responses(fake_card: ModelCard) -> None:
    def talk(client: openai.OpenAI) -> None:
        asked: Any = {
            "model": "fake",
            "input": "Say it",
            "instructions": "Be brief.",
            "extra_body": {"seed": 1},
        }
        whole = client.responses.create(**asked, max_output_tokens=60, store=False)
        assert (whole.output_text, whole.status) == (TEXT, "completed")
        assert whole.usage is not None and whole.usage.total_tokens > whole.usage.output_tokens > 0
        cut = client.responses.create(**asked, max_output_tokens=5)
        assert (cut.output_text, cut.status) == (TEXT[:5], "incomplete")
        assert cut.incomplete_details is not None and cut.incomplete_details.reason == "max_output_tokens"
        with client.responses.stream(**asked, max_output_tokens=60) as stream:
            events = list(stream)
            assert stream.get_final_response().output_text == TEXT
        kinds = [event.type for event in events]
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
        said: Any = [
            {"role": "user", "content": [{"type": "input_text", "text": "Say it"}]},
            *(item.to_dict() for item in whole.output),
            {"role": "user", "content": "And again"},
        ]
        again = client.responses.create(model="fake", input=said, extra_body={"seed": 2})
        assert again.output_text == "Two."
        for field, value in {"previous_response_id": "resp-1", "store": True, "tools": [{}]}.items():
            with pytest.raises(openai.BadRequestError) as refused:
                client.responses.create(model="fake", input="a", extra_body={field: value})
            assert refused.value.param == field

    run(fake_card, talk)


def test_error_classes(fake_card: ModelCard, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[ann]\nsha256 = "{fingerprint("ann")}"\nrequests_per_min = 3\n')
    toml = f'[stages.ingress.options]\nkeys_file = "{keys}"\n'

    def talk(client: openai.OpenAI) -> None:
        ask = client.completions.create
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="bob").models.list()
        with pytest.raises(openai.NotFoundError) as missing:
            ask(model="other", prompt="a")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as wrong:
            ask(model="fake", prompt="a", temperature=9)
        assert (wrong.value.param, wrong.value.type) == ("temperature", "invalid_request_error")
        with pytest.raises(openai.BadRequestError) as unknown:
            ask(model="fake", prompt="a", extra_body={"no_such_field": 1})
        assert unknown.value.param == "no_such_field"
        for _ in range(3):
            ask(model="fake", prompt="a", seed=1, max_tokens=2)
        with pytest.raises(openai.RateLimitError) as limited:
            ask(model="fake", prompt="a", max_tokens=2)
        assert limited.value.code == "rate_limit_exceeded"
        assert int(limited.value.response.headers["retry-after"]) > 10

    run(fake_card, talk, toml, max_retries=0)


def test_it_comes_back_when_it_is_told_to(fake_card: ModelCard) -> None:
    """Eight at a time where one is let in: the client's own retries, by Retry-After, bring all through."""
    toml = "[stages.ingress.options]\nmax_live_requests = 1\n"

    async def main() -> None:
        async with serving(fake_card, lambda: FakeRunner(ROOM), toml) as server:
            async with openai.AsyncOpenAI(
                base_url=f"{server.url}/v1", api_key="ann", max_retries=8
            ) as client:
                asks = [client.completions.create(model="fake", prompt="a", max_tokens=3) for _ in range(4)]
                answers = await asyncio.gather(*asks)
            assert all(answer.usage and answer.usage.completion_tokens == 3 for answer in answers)

    asyncio.run(main())
