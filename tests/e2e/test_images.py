"""Images over real sockets, with a random vision model: what is seen counts, text never waits for it."""

import asyncio
import base64
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.checkpoint.folder import describe_folder
from pipeline.runtime.testing import FakeRunner
from tests import tiny_vision
from tests.e2e.world import Server, serving

TOML = """
[device]
dtype = "float32"
device = "cpu"
backend = "torch"
num_blocks = 64
block_size = 8
max_num_seqs = 8
[stages.images]
"""


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    return describe_folder(tiny_vision.write_folder(tmp_path_factory.mktemp("llava")), "llava", "llava")


def data_url(file: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"


def asked(*urls: str, text: str = "hello") -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


RED, BLUE = (data_url(tiny_vision.picture(seed)) for seed in (1, 2))
Talk = Callable[[openai.AsyncOpenAI, Server], Coroutine[Any, Any, None]]


def talk(card: ModelCard, talk: Talk, toml: str = TOML, **options: Any) -> None:
    async def main() -> None:
        async with serving(card, toml=toml, **options) as server:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
                await asyncio.wait_for(talk(client, server), 60)
            await server.rest()

    asyncio.run(main())


async def said(client: openai.AsyncOpenAI, messages: Any, **fields: Any) -> str:
    fields = {"max_tokens": 12, "temperature": 0} | fields
    answer = await client.chat.completions.create(model="llava", messages=messages, **fields)
    return answer.choices[0].message.content or ""


def test_answers_differ_by_image_and_are_the_same_for_the_same(card: ModelCard) -> None:
    async def scenario(client: openai.AsyncOpenAI, server: Server) -> None:
        red, blue, again = [await said(client, asked(url)) for url in (RED, BLUE, RED)]
        assert red == again != blue
        assert await said(client, asked(RED, BLUE)) != await said(client, asked(BLUE, RED))
        assert await said(client, asked(text="hello")) != red

    talk(card, scenario)
