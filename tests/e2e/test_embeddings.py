"""/v1/embeddings over real sockets: the official client, beside generation, and every refusal by name."""

import asyncio
import base64
import math
from array import array
from struct import pack
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from pipeline.messages import StepPlan
from pipeline.runtime.testing import FakeHandle, FakeRunner, fake_embedding
from tests.e2e.saying import ROOM
from tests.e2e.world import Server, serving
from tests.gpu.driver import TINY, Driver, random_tensors

SHORT = msgspec.structs.replace(TINY, vocab_size=259, max_position=128)


def expected(num_tokens: int) -> list[float]:
    return array("f", fake_embedding(num_tokens)).tolist()


async def post(server: Server, **body: Any) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/v1/embeddings", json=body) as answer,
    ):
        return answer.status, await answer.json()


def test_the_openai_client_gets_what_the_model_gives() -> None:
    texts = ["The sea is", "a", "What is it that the sea is not? " * 2]
    card = msgspec.structs.replace(byte_card(128), architecture=SHORT)

    def runner() -> Any:
        return build_runner(SHORT, random_tensors(SHORT), RunnerOptions(device="cpu", num_blocks=64))

    def direct(text: str) -> list[float]:
        driver = Driver(runner())
        sequence = driver.add(text.encode(), pooling="mean")
        driver.step([(sequence, len(text))])
        assert sequence.embedding is not None
        return sequence.embedding.tolist()

    async def main() -> None:
        async with serving(card, runner) as server:
            client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="ann")
            mean: Any = {"pooling": "mean"}
            async with client:
                told = await client.embeddings.create(model="fake", input=texts, extra_body=mean)
                plain = await client.embeddings.create(
                    model="fake", input=list(texts[0].encode()), encoding_format="float", extra_body=mean
                )
                last = await client.embeddings.create(model="fake", input=texts[0])
            assert [each.index for each in told.data] == [0, 1, 2]
            assert [each.embedding for each in told.data] == [direct(text) for text in texts]
            assert plain.data[0].embedding == told.data[0].embedding != last.data[0].embedding
            assert sum(x * x for x in last.data[0].embedding) == pytest.approx(1, abs=1e-6)
            num_tokens = sum(map(len, texts))
            assert told.usage.prompt_tokens == told.usage.total_tokens == num_tokens
            await server.rest()

    asyncio.run(main())


async def write(server: Server) -> Any:
    """Completion tokens of a request beside."""
    asked = {"prompt": "Say it", "max_tokens": 300, "ignore_eos": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/v1/completions", json=asked) as answer,
    ):
        return (await answer.json())["usage"]["completion_tokens"]


PLACES = {
    "one worker": "",
    "prefill and decode apart, filtered": """
[stages.schedule.options]
separation = "split"
[stages.filter]
""",
    "contiguous": """
[stages.schedule.options]
allocation = "contiguous"
prefix_cache = false
""",
}


@pytest.mark.parametrize("place", PLACES)
def test_many_inputs_some_at_a_time_beside_a_stream(fake_card: ModelCard, place: str) -> None:
    most = 0

    def count(plan: StepPlan) -> None:
        nonlocal most
        most = max(most, len(plan.request_ids))

    async def main() -> None:
        toml = f"[stages.ingress.options]\nembeddings_at_once = 5\n{PLACES[place]}"
        async with serving(fake_card, lambda: FakeRunner(before_step=count), toml) as server:
            writing = asyncio.create_task(write(server))
            inputs = [[7] * (1 + k % 40) for k in range(100)]
            status, body = await post(server, input=inputs, timings=True)
            assert status == 200
            assert [each["embedding"] for each in body["data"]] == [expected(len(ids)) for ids in inputs]
            assert sum(body["timings"]["segments_ms"].values()) == pytest.approx(body["timings"]["e2e_ms"])
            status, body = await post(server, input="seven b", encoding_format="base64")
            assert base64.b64decode(body["data"][0]["embedding"]) == fake_embedding(7)
            assert await writing == 300
            assert 2 <= most <= 6
            await server.rest()

    asyncio.run(main())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "input"),
    "an empty text": ({"input": ""}, "input"),
    "an empty one of several": ({"input": ["a", ""]}, "input"),
    "an empty list": ({"input": []}, "input"),
    "texts and ids": ({"input": ["a", 7]}, "input"),
    "no id": ({"input": [7, 259]}, "input"),
    "too many": ({"input": ["a"] * 2049}, "input"),
    "too long": ({"input": [7] * 129}, "input"),
    "a length of its own": ({"input": "a", "dimensions": 64}, "dimensions"),
    "an unknown pooling": ({"input": "a", "pooling": "max"}, "pooling"),
    "an unknown format": ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    "a field of generation": ({"input": "a", "max_tokens": 3}, "max_tokens"),
}


def test_what_is_wrong_is_named() -> None:
    async def main() -> None:
        async with serving(byte_card(128), lambda: FakeRunner(ROOM)) as server:
            for why, (body, param) in REFUSED.items():
                status, answer = await post(server, **body)
                assert (status, answer["error"]["param"]) == (400, param), why
            status, answer = await post(server, input=[7] * 128)
            assert status == 200 and answer["usage"]["total_tokens"] == 128
            status, answer = await post(server, input=[7] * 500, truncate_prompt_tokens=-1)
            assert status == 200 and answer["usage"]["total_tokens"] == 128
            status, _ = await post(server, input="a", model="other")
            assert status == 404
            await server.rest()

    asyncio.run(main())


class SickHandle(FakeHandle):
    def embeddings_sync(self) -> list[bytes]:
        return [pack("<8f", *[math.nan] * 8) for _ in self.plan.pooled]


class SickRunner(FakeRunner):
    """Its model's states are no numbers."""

    def launch(self, plan: StepPlan, /) -> FakeHandle:
        done = super().launch(plan)
        return SickHandle(plan, done.token_ids_sync(), done.begin_ns, done.end_ns)


def test_what_is_no_number_is_the_servers_fault(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, SickRunner) as server:
            status, answer = await post(server, input=["a", "b"])
            assert (status, answer["error"]["code"]) == (500, "server_error")
            await server.rest()

    asyncio.run(main())


def test_a_client_that_leaves_takes_its_inputs_along(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, lambda: FakeRunner(ROOM)) as server:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await post(server, input=["a" * 500] * 1500)
            await server.rest()

    asyncio.run(main())
