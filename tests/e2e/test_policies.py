"""Scheduling policies through the whole server: who is answered first, and that the answers are the same."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady
from pipeline.runtime.testing import CheckingRunner, FakeRunner
from tests.e2e.world import Server, serving

STEP_S = 0.004
ONE_AT_A_TIME = DeviceReady(num_blocks=64, block_size=16, max_num_seqs=1, max_num_batched_tokens=256)
CRAMPED = DeviceReady(num_blocks=24, block_size=4, max_num_seqs=6, max_num_batched_tokens=16)


def slow_runner() -> FakeRunner:
    return FakeRunner(ONE_AT_A_TIME, before_step=lambda plan: time.sleep(STEP_S))


def options(**fields: Any) -> str:
    lines = [f"{key} = {value!r}" for key, value in fields.items()]
    return "\n".join(["[stages.schedule.options]", *lines])


async def ask(session: aiohttp.ClientSession, server: Server, **fields: Any) -> str:
    body = {"prompt": "abc", "max_tokens": 4, "ignore_eos": True} | fields
    async with session.post(f"{server.url}/v1/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return str(answer["choices"][0]["text"])


async def order_of_answers(server: Server, session: aiohttp.ClientSession, asked: list[Any]) -> list[int]:
    """Ask while the device is busy, one after the other, and see who is answered when."""
    answered: list[int] = []
    busy = asyncio.create_task(ask(session, server, max_tokens=30))
    await server.steps(1)

    async def one(index: int) -> None:
        await ask(session, server, **asked[index])
        answered.append(index)

    async with asyncio.TaskGroup() as group:
        for index in range(len(asked)):
            group.create_task(one(index))
            await asyncio.sleep(2 * STEP_S)
    await busy
    return answered


@pytest.mark.parametrize(
    ("policy", "asked", "expected"),
    [
        ("fcfs", [{"max_tokens": 9}, {"max_tokens": 1}], [0, 1]),
        ("sjf", [{"max_tokens": 9}, {"max_tokens": 1}], [1, 0]),
        ("priority", [{"priority": -2}, {"priority": -1}, {"priority": -1}], [1, 2, 0]),
        ("deadline", [{}, {"ttft_target_ms": 900}], [1, 0]),
        ("fair", [{"user": "a"}, {"user": "a"}, {"user": "b"}], [2, 1]),
    ],
)
def test_who_is_answered_first(
    policy: str, asked: list[dict[str, Any]], expected: list[int], fake_card: ModelCard
) -> None:
    toml = options(policy=policy, ttft_target_ms=60_000.0, sjf_tokens_per_s=1.0)

    async def main() -> None:
        async with serving(fake_card, slow_runner, toml) as server, aiohttp.ClientSession() as session:
            answered = await order_of_answers(server, session, asked)
            assert [index for index in answered if index in expected] == expected

    asyncio.run(main())


def test_a_higher_priority_preempts(fake_card: ModelCard) -> None:
    async def main() -> None:
        toml = options(policy="priority")
        async with serving(fake_card, slow_runner, toml) as server, aiohttp.ClientSession() as session:
            expected = await ask(session, server, max_tokens=40, seed=1)
            low = asyncio.create_task(ask(session, server, max_tokens=40, seed=1))
            await server.steps(50)
            await ask(session, server, max_tokens=2, priority=1)
            assert not low.done()
            assert await low == expected, "its text does not show that it was interrupted"
            assert server.scheduler.num_outranked == 1

    asyncio.run(main())


def test_answers_do_not_depend_on_the_policy(fake_card: ModelCard) -> None:
    async def answers(toml: str) -> list[str]:
        async with serving(fake_card, lambda: CheckingRunner(CRAMPED), toml) as server:
            async with aiohttp.ClientSession() as session:
                asked = [
                    ask(
                        session,
                        server,
                        prompt="x" * (1 + 5 * k % 23),
                        max_tokens=20 + k,
                        seed=k,
                        priority=k % 3,
                    )
                    for k in range(24)
                ]
                texts = await asyncio.gather(*asked)
            await server.rest()
            return list(texts)

    expected = asyncio.run(answers(""))
    for policy in ("priority", "sjf", "fair", "deadline"):
        assert asyncio.run(answers(options(policy=policy))) == expected
    assert asyncio.run(answers(options(batching="static", gather_ms=2.0))) == expected
    assert asyncio.run(answers(options(itl_target_ms=0.01, min_prefill_tokens=1))) == expected
