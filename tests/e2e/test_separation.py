"""A server with a worker for prefill and one for decode: the answers of the mixed one, whatever happens."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from pipeline import assemble
from pipeline import config as configuration
from pipeline.checkpoint.card import ModelCard
from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady, StepPlan
from pipeline.runtime.testing import CheckingRunner
from tests.e2e.world import Server, serving

SPLIT = '[stages.schedule.options]\nseparation = "split"\nmax_wait_ms = 0\n'
MIXED = "[stages.schedule.options]\nmax_wait_ms = 0\n"
CAPACITY = DeviceReady(num_blocks=60, block_size=4, max_num_seqs=12, max_num_batched_tokens=32)


def shared_runners(plans: list[StepPlan]) -> Callable[[], Any]:
    """Runners over the same blocks, each checking all that it reads."""
    opened: list[CheckingRunner] = []

    def make() -> CheckingRunner:
        runner = opened[0].fork() if opened else CheckingRunner(CAPACITY)
        opened.append(runner)
        launch = runner.launch
        runner.launch = lambda plan: (plans.append(plan), launch(plan))[1]  # type: ignore[method-assign]
        return runner

    return make


def requests(count: int) -> list[dict[str, Any]]:
    rng = random.Random(5)
    return [
        {"prompt": "x" * rng.randint(1, 60), "max_tokens": rng.randint(1, 40), "seed": k, "ignore_eos": True}
        for k in range(count)
    ]


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> str:
    async with session.post(f"{url}/v1/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        assert answer["usage"]["completion_tokens"] == body["max_tokens"]
        return str(answer["choices"][0]["text"])


async def ask_all(server: Server, bodies: list[dict[str, Any]]) -> list[str]:
    async with aiohttp.ClientSession() as session:
        return list(await asyncio.gather(*(ask(session, server.url, body) for body in bodies)))


def check_times(server: Server, count: int) -> None:
    records = server.pipeline.telemetry.journal.requests()
    assert len(records) == count
    for record in records:
        assert sum(record.segments_ns) == record.e2e_ns and min(record.segments_ns) >= 0
        assert sum(record.ttft_segments_ns) == record.ttft_ns and min(record.ttft_segments_ns) >= 0


def test_the_same_text_in_both_modes_with_preemptions(fake_card: ModelCard) -> None:
    async def texts(toml: str, num_workers: int) -> list[str]:
        plans: list[StepPlan] = []
        async with serving(fake_card, shared_runners(plans), toml) as server:
            got = await ask_all(server, requests(40))
            await server.rest()
            check_times(server, 40)
            assert server.scheduler.num_preemptions > 0
        assert {plan.worker for plan in plans} == set(range(num_workers))
        return got

    mixed, split = asyncio.run(texts(MIXED, 1)), asyncio.run(texts(SPLIT, 2))
    assert mixed == split
    assert len(set(mixed)) > 30


def test_clients_that_leave_at_any_time_leave_nothing(fake_card: ModelCard) -> None:
    async def leave(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
        try:
            await asyncio.wait_for(ask(session, url, body | {"max_tokens": 160}), body["seed"] % 9 * 0.004)
        except TimeoutError:
            return

    async def main() -> None:
        async with serving(fake_card, shared_runners([]), SPLIT) as server:
            async with aiohttp.ClientSession() as session:
                await asyncio.gather(*(leave(session, server.url, body) for body in requests(60)))
            await server.rest()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (SPLIT + '[device]\nhost_kv_memory = "1MiB"', "device.host_kv_memory must be 0"),
        (SPLIT + 'batching = "static"', 'batching must not be "static"'),
        (SPLIT + "[stages.sample]\ninbox = 3", "stages.sample.inbox = 3: must be at least"),
    ],
)
def test_what_does_not_go_with_it_is_refused(toml: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assemble.check(configuration.loads(toml, "test.toml"))


@pytest.mark.model
@pytest.mark.parametrize("backend", ["host", "torch"])
def test_the_real_model_answers_the_same(model_card: ModelCard, backend: str) -> None:
    bodies = [
        {
            "prompt": f"Lesson {k}: " + "how a clock works. " * (1 + 5 * (k % 4)),
            "max_tokens": 10,
            "ignore_eos": True,
        }
        | ({"temperature": 0} if k % 2 else {"temperature": 0.8, "seed": k})
        for k in range(12)
    ]

    async def texts(schedule: str) -> list[str]:
        device = (
            f'[device]\ndevice = "cpu"\nbackend = "{backend}"\nnum_blocks = 40\nmax_num_batched_tokens = 64\n'
        )
        async with serving(model_card, toml=device + schedule) as server:
            got = await ask_all(server, bodies)
            await server.rest()
            return got

    assert asyncio.run(texts(MIXED)) == asyncio.run(texts(SPLIT))
