"""Recordings of a small server with a fake device: real sockets, all stages, made in about a second."""

import asyncio
from functools import partial
from pathlib import Path
from time import sleep

import aiohttp

from pipeline.checkpoint.card import ModelCard
from pipeline.messages import StepPlan
from pipeline.recordings.wanted import Wanted
from pipeline.runtime.testing import FakeRunner
from tests.e2e.world import serving

STAGES = ("tokenize", "schedule", "execute", "sample", "detokenize", "stream")
NUM_REQUESTS = 12
MAX_TOKENS = (3, 8, 40)
STEP_S, GAP_S = 0.002, 0.004


def record(card: ModelCard, folder: Path, *, after: int = 0) -> None:
    """A file for each stage, `STAGE.rec`, of `NUM_REQUESTS` requests, some stopped by a string.

    Args:
        after: requests that begin before the recordings do, and go on.
    """
    asyncio.run(_record(card, folder, after))


async def _record(card: ModelCard, folder: Path, after: int) -> None:
    toml = f'[trace]\nrecord_dir = "{folder}"\nrecord_redacted = false\n'
    runner = partial(FakeRunner, before_step=_step)
    async with serving(card, runner, toml) as server, aiohttp.ClientSession() as http:
        early = [asyncio.create_task(_ask(http, server.url, number, 200)) for number in range(after)]
        await server.steps(3 * bool(after))
        begun = {
            name: await server.pipeline.recordings.begin(Wanted(f"->{name}", is_redacted=False))
            for name in STAGES
        }
        asked = (_ask(http, server.url, number, MAX_TOKENS[number % 3]) for number in range(NUM_REQUESTS))
        await asyncio.gather(*asked)
        for name, state in begun.items():
            await server.pipeline.recordings.end(state.id)
            (folder / state.id).rename(folder / f"{name}.rec")
        await asyncio.gather(*early)


def _step(plan: StepPlan) -> None:
    sleep(STEP_S)


async def _ask(http: aiohttp.ClientSession, url: str, number: int, max_tokens: int) -> None:
    """Its seed makes every request's tokens its own."""
    body = {
        "prompt": f"request {number} " * (1 + number % 4),
        "max_tokens": max_tokens,
        "seed": number,
        "ignore_eos": True,
        "stop": ["~"] if number % 3 == 0 else None,
        "temperature": 0.5,
    }
    await asyncio.sleep(number * GAP_S)
    async with http.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
