"""Three times what the server can bear: who comes in is served in time, the others know at once."""

import asyncio
import time
from dataclasses import dataclass

import aiohttp

from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady, StepPlan
from pipeline.runtime.testing import FakeRunner
from tests.e2e.world import Server, serving

SLOTS = 8
NUM_TOKENS = 10
STEP_S = 0.02
CAPACITY = SLOTS / (NUM_TOKENS * STEP_S)
"""Requests a second."""
PATIENCE_S = 1.0
DEVICE = DeviceReady(num_blocks=256, block_size=16, max_num_seqs=SLOTS, max_num_batched_tokens=512)


@dataclass
class Answer:
    status: int
    code: str
    sent_s: float
    took_s: float
    """To the first byte of the answer."""
    retry_after: str | None
    num_tokens: int


def slow_runner() -> FakeRunner:
    def step(plan: StepPlan) -> None:
        time.sleep(STEP_S)

    return FakeRunner(DEVICE, before_step=step)


async def ask(client: aiohttp.ClientSession, url: str, answers: list[Answer]) -> None:
    body = {
        "prompt": "x" * 20,
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "patience_ms": 1000 * PATIENCE_S,
    }
    sent_s = time.perf_counter()
    async with client.post(f"{url}/v1/completions", json=body) as response:
        took_s = time.perf_counter() - sent_s
        if response.status == 200:
            text = await response.text()
            answers.append(Answer(200, "", sent_s, took_s, None, text.count('"text"')))
        else:
            code = (await response.json())["error"]["code"]
            after = response.headers.get("Retry-After")
            answers.append(Answer(response.status, code, sent_s, took_s, after, 0))


async def overload(server: Server, load: float, seconds: float) -> list[Answer]:
    answers: list[Answer] = []
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
        asyncio.TaskGroup() as group,
    ):
        begin_s = time.perf_counter()
        for number in range(int(load * CAPACITY * seconds)):
            await asyncio.sleep(begin_s + number / (load * CAPACITY) - time.perf_counter())
            group.create_task(ask(client, server.url, answers))
    return answers


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def test_overload_is_refused_at_the_door_and_the_rest_is_served_in_time(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, slow_runner) as server:
            await overload(server, 3, 1.5)  # until rates are measured, more come in than will be served
            begin_ns, begin_s = time.perf_counter_ns(), time.perf_counter()
            answers = await overload(server, 3, 4.0)
            steps = [
                s for s in server.pipeline.telemetry.journal.steps(begin_ns) if s.begin_ns < begin_ns + 3.5e9
            ]
            check(answers, begin_s)
            assert sum(step.num_rows for step in steps) > 0.8 * SLOTS * len(steps), "slots stood empty"
            async with aiohttp.ClientSession() as client, client.get(f"{server.url}/metrics") as response:
                shown = (await response.text()).splitlines()
            rates = [
                float(line.split()[1]) for line in shown if line.startswith("stageline_gate_service_requests")
            ]
            assert len(rates) == 1 and 0.3 * CAPACITY < rates[0] < 1.3 * CAPACITY
            await server.rest()

    asyncio.run(main())


def check(answers: list[Answer], begin_s: float) -> None:
    refused = [each for each in answers if each.code == "queue_wait"]
    dropped = [each for each in answers if each.code == "wait_too_long"]
    served = [each for each in answers if each.status == 200]
    assert len(refused) + len(dropped) + len(served) == len(answers)
    assert len(refused) > len(answers) / 3
    assert all(each.status == 429 and 1 <= int(each.retry_after or 0) <= 5 for each in refused)
    assert quantile([each.took_s for each in refused], 0.5) < 0.05
    assert len(dropped) < 0.25 * (len(dropped) + len(served)), "who was let in should have been served"
    assert all(each.status == 503 and int(each.retry_after or 0) >= 1 for each in dropped)
    assert quantile([each.took_s for each in served], 0.95) < PATIENCE_S
    assert all(each.num_tokens > 0 for each in served)


def test_without_overload_nobody_is_refused(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, slow_runner) as server:
            answers = await overload(server, 0.5, 2.0)
            assert {each.status for each in answers} == {200}

    asyncio.run(main())


def test_patience_decides(fake_card: ModelCard) -> None:
    """One who has no time is sent away; who has is let in behind the same queue."""

    async def main() -> None:
        async with serving(fake_card, slow_runner) as server:
            busy = asyncio.create_task(overload(server, 3, 2.0))
            await asyncio.sleep(1.5)
            body = {"prompt": "x", "max_tokens": 1}
            async with aiohttp.ClientSession() as client:
                url = f"{server.url}/v1/completions"
                async with client.post(url, json=body | {"patience_ms": 100}) as hasty:
                    assert hasty.status in (429, 503)
                async with client.post(url, json=body | {"patience_ms": 60_000}) as patient:
                    assert patient.status == 200
            await busy

    asyncio.run(main())
