"""The device is lost in the middle of streams: all of them go on, and nobody can tell from the text."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.errors import StageCrashed
from pipeline.messages import SamplingParams
from pipeline.runtime.testing import fake_token
from tests.e2e.world import Server, serving
from tests.fake_process import CAPACITY, Script, factory

STEP_S = 0.004
NUM_TOKENS = 60
NUM_STREAMS = 20


@asynccontextmanager
async def started(
    card: ModelCard, script: Script, toml: str = "", *, is_process: bool = True, num_workers: int = 1
) -> AsyncIterator[tuple[Server, aiohttp.ClientSession]]:
    runner = factory(script, is_process=is_process, num_workers=num_workers)
    async with serving(card, toml=toml, runner=runner) as server, aiohttp.ClientSession() as session:
        yield server, session


async def stream(session: aiohttp.ClientSession, url: str, seed: int) -> str:
    """The text of one answer, pieced together; its end must be as it should."""
    body = {"prompt": "abc", "max_tokens": NUM_TOKENS, "seed": seed, "ignore_eos": True, "stream": True}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200
        text = (await response.content.read()).decode()
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    assert choices[-1]["finish_reason"] == "length"
    return "".join(choice["text"] for choice in choices)


def expected(seed: int) -> str:
    sampling = SamplingParams(seed=seed)
    return "".join(chr(fake_token(sampling, 3 + k)) for k in range(NUM_TOKENS))


async def all_streams(session: aiohttp.ClientSession, url: str) -> list[str]:
    return await asyncio.gather(*(stream(session, url, seed) for seed in range(NUM_STREAMS)))


async def until_up(session: aiohttp.ClientSession, url: str, status: int) -> dict[str, Any]:
    """Asked again and again, /ready answers with this status."""
    async with asyncio.timeout(10):
        while True:
            async with session.get(f"{url}/ready") as response:
                if response.status == status:
                    answer: dict[str, Any] = await response.json()
                    return answer
            await asyncio.sleep(0.005)


async def metric(session: aiohttp.ClientSession, url: str, name: str) -> float:
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return float(next(line for line in lines if line.startswith(f"stageline_{name} ")).split()[1])


@pytest.mark.parametrize("is_late", [False, True])
def test_a_killed_process_costs_no_stream_a_token(fake_card: ModelCard, is_late: bool) -> None:
    async def main() -> None:
        script = Script(step_s=STEP_S, open_s=0.2, is_late=is_late)
        async with started(fake_card, script) as (server, session):
            pid = server.pipeline.telemetry.worker.pid
            assert pid and pid != os.getpid()
            answers = asyncio.create_task(all_streams(session, server.url))
            await server.steps(25)
            os.kill(pid, signal.SIGKILL)
            error = (await until_up(session, server.url, 503))["error"]
            assert error["code"] == "device_lost" and "SIGKILL" in error["message"]
            await until_up(session, server.url, 200)
            assert await answers == [expected(seed) for seed in range(NUM_STREAMS)]
            assert await metric(session, server.url, "device_restarts_total") == 1
            assert await metric(session, server.url, "recomputed_requests_total") == NUM_STREAMS
            assert server.pipeline.telemetry.worker.pid not in (0, pid)
            with pytest.raises(ProcessLookupError):  # it was reaped: no zombie is left of it
                os.kill(pid, 0)
            await session.close()
            await server.rest()

    asyncio.run(main())


@pytest.mark.parametrize("is_process", [False, True])
@pytest.mark.parametrize(
    ("fault", "counter"), [("memory", "device_out_of_memory"), ("fault", "device_restarts")]
)
def test_a_runner_that_raises(
    fake_card: ModelCard, tmp_path: Path, fault: str, counter: str, is_process: bool
) -> None:
    """Want of memory costs no process, any other fault does; and no text is touched by either."""

    async def main() -> None:
        faults = tmp_path / "faults"
        faults.write_text("\n" * 20 + fault + "\n" * 10 + fault + "\n")
        script = Script(step_s=STEP_S, faults=str(faults))
        async with started(fake_card, script, is_process=is_process) as (server, session):
            pid = server.pipeline.telemetry.worker.pid
            assert await all_streams(session, server.url) == [expected(k) for k in range(NUM_STREAMS)]
            assert await metric(session, server.url, f"{counter}_total") == 2
            has_new_process = server.pipeline.telemetry.worker.pid != pid
            assert has_new_process == (is_process and fault == "fault")
            if fault == "memory":
                limit = server.scheduler._limit.num_tokens
                assert limit == CAPACITY.max_num_batched_tokens // 4
            await session.close()
            await server.rest()

    asyncio.run(main())


def test_a_process_that_hangs_is_replaced(fake_card: ModelCard) -> None:
    async def main() -> None:
        toml = "stages.execute.options.step_timeout_s = 0.5"
        async with started(fake_card, Script(step_s=STEP_S), toml) as (server, session):
            pid = server.pipeline.telemetry.worker.pid
            answers = asyncio.create_task(all_streams(session, server.url))
            await server.steps(25)
            os.kill(pid, signal.SIGSTOP)
            error = (await until_up(session, server.url, 503))["error"]
            assert "has not ended within 0.5 s" in error["message"]
            assert await answers == [expected(seed) for seed in range(NUM_STREAMS)]
            assert server.pipeline.telemetry.worker.pid != pid

    asyncio.run(main())


@pytest.mark.parametrize("is_process", [False, True])
def test_two_workers_are_lost_together(fake_card: ModelCard, tmp_path: Path, is_process: bool) -> None:
    """One of them raises, in the middle of a step of the other."""

    async def main() -> None:
        faults = tmp_path / "faults"
        faults.write_text("\n" * 30 + "memory\n" + "\n" * 5)
        script = Script(step_s=STEP_S, faults=str(faults))
        toml = 'stages.schedule.options.separation = "split"'
        world = started(fake_card, script, toml, is_process=is_process, num_workers=2)
        async with world as (server, session):
            assert await all_streams(session, server.url) == [expected(k) for k in range(NUM_STREAMS)]
            assert await metric(session, server.url, "device_out_of_memory_total") == 1
            await session.close()
            await server.rest()

    asyncio.run(main())


def test_past_the_budget_everybody_is_answered(fake_card: ModelCard, tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.write_text("\n" * 10 + "fault\n" * 50)
    answers: list[int] = []

    async def serve() -> None:
        toml = "stages.execute.options.max_restarts = 1"
        script = Script(step_s=STEP_S, faults=str(faults))
        async with started(fake_card, script, toml) as (server, session):
            body = {"prompt": "abc", "max_tokens": NUM_TOKENS, "ignore_eos": True}
            asked = [session.post(f"{server.url}/v1/completions", json=body) for _ in range(4)]
            answers.extend(answer.status for answer in await asyncio.gather(*asked))
            assert server.pipeline.telemetry.worker.num_faults == 1

    async def main() -> None:
        with pytest.raises(StageCrashed, match="illegal memory access"):
            await serve()

    asyncio.run(main())
    assert answers == [500] * 4


def test_steps_that_never_fit_are_the_end(fake_card: ModelCard, tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.write_text("memory\n" * 50)

    async def serve() -> None:
        toml = "stages.execute.options.max_out_of_memory = 3"
        script = Script(faults=str(faults))
        async with started(fake_card, script, toml, is_process=False) as (server, session):
            body = {"prompt": "abc", "max_tokens": 5}
            async with session.post(f"{server.url}/v1/completions", json=body) as answer:
                assert answer.status == 500
            assert server.pipeline.telemetry.worker.num_out_of_memory == 3

    async def main() -> None:
        with pytest.raises(StageCrashed, match="the test has taken it all"):
            await serve()

    asyncio.run(main())
