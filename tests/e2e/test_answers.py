"""The real model through all stages: an answer does not depend on its neighbours, chunks or preemptions.

Greedy and seeded, on every backend, each request is asked alone, among 15 others, in chunks of 16 tokens,
and with so few blocks that it is preempted in the middle: computed again, or kept in host memory.
"""

import asyncio
from typing import Any

import aiohttp
import pytest

from pipeline.checkpoint.card import ModelCard
from tests.e2e.world import Server, serving

pytestmark = pytest.mark.model

SUBJECTS = ("rivers", "clocks", "bread", "glass", "whales", "maps", "salt", "bridges")
REQUESTS: list[dict[str, Any]] = [
    {"prompt": f"A short history of {subject}, told to a child. " * (1 + k % 3), "max_tokens": 12}
    | ({"temperature": 0} if k % 2 == 0 else {"temperature": 0.9, "top_p": 0.95, "seed": k})
    for k, subject in enumerate(SUBJECTS * 2)
]
LIMITS = {
    "alone": "max_num_seqs = 1\nnum_blocks = 256",
    "among 15 others": "max_num_seqs = 16\nnum_blocks = 256",
    "in chunks of 16": "max_num_seqs = 16\nnum_blocks = 256\nmax_num_batched_tokens = 16",
    "preempted": "max_num_seqs = 16\nnum_blocks = 20",
    "swapped": 'max_num_seqs = 16\nnum_blocks = 20\nhost_kv_memory = "64MiB"',
}


async def ask(session: aiohttp.ClientSession, url: str, request: dict[str, Any]) -> str:
    body = request | {"ignore_eos": True}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        assert answer["usage"]["completion_tokens"] == request["max_tokens"]
        return str(answer["choices"][0]["text"])


async def all_answers(server: Server) -> list[str]:
    async with aiohttp.ClientSession() as session:
        return list(await asyncio.gather(*(ask(session, server.url, request) for request in REQUESTS)))


NO_LIMIT = "[stages.schedule.options]\nmax_wait_ms = 0"
"""One after the other takes a while, and nobody is to be sent away."""
BACKENDS = {
    "torch fp32": 'dtype = "float32"',
    "torch bf16": 'backend = "torch"',
    "host bf16": 'backend = "host"\nweights = "bf16"',
    "host int8": 'backend = "host"\nweights = "int8"',
}


SLOW = {"torch fp32", "torch bf16", "host bf16"}


@pytest.mark.parametrize(
    "backend", [pytest.param(each, marks=[pytest.mark.nightly] * (each in SLOW)) for each in BACKENDS]
)
def test_an_answer_depends_on_the_request_alone(model_card: ModelCard, backend: str) -> None:
    async def answers(limits: str) -> tuple[list[str], int, float]:
        toml = f'[device]\ndevice = "cpu"\n{BACKENDS[backend]}\n{limits}\n{NO_LIMIT}'
        async with serving(model_card, toml=toml) as server:
            texts, core = await all_answers(server), server.scheduler
            return texts, core.num_preemptions, core.policies.gauges().get("swaps_total", 0)

    got = {name: asyncio.run(answers(limits)) for name, limits in LIMITS.items()}
    alone, _, _ = got["alone"]
    assert len(set(alone)) > len(SUBJECTS)
    assert got["preempted"][1] > 0, "20 blocks were meant to be too few"
    assert got["preempted"][2] == 0 and got["swapped"][2] > 0
    for name, (texts, _, _) in got.items():
        assert texts == alone, f"{name} differs from alone"


def test_seeds_repeat_and_no_seed_does_not(model_card: ModelCard) -> None:
    async def main() -> None:
        toml = '[device]\ndevice = "cpu"\nnum_blocks = 64'
        async with serving(model_card, toml=toml) as server, aiohttp.ClientSession() as session:
            base = {"prompt": "The best thing about", "max_tokens": 16, "temperature": 1.0}
            seeded = [ask(session, server.url, base | {"seed": 7}) for _ in range(2)]
            free = [ask(session, server.url, base) for _ in range(2)]
            first, second, third, fourth = await asyncio.gather(*seeded, *free)
            assert first == second
            assert third != fourth

    asyncio.run(main())
