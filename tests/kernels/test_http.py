"""A server on Triton's kernels, in the interpreter, answers as one on torch does."""

import asyncio
import tempfile
from pathlib import Path

import aiohttp
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from tests.e2e.world import serving
from tests.kernels.isolated import isolated
from tests.tiny_models import write_folder

ASKED = {"prompt": "hello world 12", "max_tokens": 6, "temperature": 0.9, "seed": 4, "top_p": 0.8}


async def answer(card: ModelCard, backend: str) -> str:
    toml = f'[device]\ndevice = "cpu"\nbackend = "{backend}"\ndtype = "float32"\nnum_blocks = 40\n'
    async with (
        serving(card, toml=toml) as server,
        aiohttp.ClientSession(server.url) as session,
        session.post("/v1/completions", json=ASKED) as response,
    ):
        assert response.status == 200
        text: str = (await response.json())["choices"][0]["text"]
        return text


@pytest.mark.nightly
@isolated
def test_the_text_is_that_of_torch() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_folder(Path(folder) / "model")
        card = describe(path, str(path))
        texts = [asyncio.run(answer(card, backend)) for backend in ("torch", "triton")]
    assert texts[0] == texts[1] and len(texts[0]) > 2
