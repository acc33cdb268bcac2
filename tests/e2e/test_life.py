"""A request's life through all stages: its times, its cancellation, refusals, crashes and draining."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.errors import StageCrashed
from pipeline.messages import DeviceReady, StepPlan
from pipeline.runtime.testing import FakeRunner
from tests.e2e.world import serving

STEP_S = 0.005
SMALL = DeviceReady(num_blocks=64, block_size=16, max_num_seqs=4, max_num_batched_tokens=256)
GENERATE = {"type": "generate", "id": "a", "prompt": "abc", "ignore_eos": True}


def slow_runner() -> FakeRunner:
    """A device with steps of 5 ms."""
    return FakeRunner(SMALL, before_step=lambda plan: time.sleep(STEP_S))


async def completion(session: aiohttp.ClientSession, url: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"prompt": "abc", "max_tokens": 4, "ignore_eos": True} | fields
    async with session.post(f"{url}/v1/completions", json=body) as response:
        return response.status, await response.json()


def test_the_segments_of_a_request_are_its_end_to_end_time(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, slow_runner) as server:
            async with aiohttp.ClientSession() as session:
                await completion(session, server.url)
                began = time.perf_counter()
                asked = [completion(session, server.url, max_tokens=20, timings=True) for _ in range(8)]
                answers = await asyncio.gather(*asked)
                took_ms = (time.perf_counter() - began) * 1e3
                for status, answer in answers:
                    assert status == 200
                    timings = answer["timings"]
                    segments = timings["segments_ms"]
                    assert sum(segments.values()) == pytest.approx(timings["e2e_ms"], abs=0.01)
                    assert min(segments.values()) >= 0
                    assert (
                        20 * STEP_S * 1e3 * 0.8 <= segments["execute.service"] <= timings["e2e_ms"] <= took_ms
                    )
                    assert 0 < timings["ttft_ms"] < timings["e2e_ms"]
                waits = sorted(answer["timings"]["segments_ms"]["schedule.wait"] for _, answer in answers)
                assert waits[-1] >= 20 * STEP_S * 1e3 * 0.8, "four of eight had to wait for a slot"
            await server.rest()

    asyncio.run(main())


def test_a_websocket_client_that_leaves_is_cancelled_within_two_steps(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, slow_runner) as server, aiohttp.ClientSession() as session:
            ws = await session.ws_connect(f"{server.url}/v1/stream")
            await ws.send_json(GENERATE | {"max_tokens": 500})
            await wait_for_delta(ws)
            before = server.scheduler.num_steps
            await ws.close()
            await session.close()
            await server.rest(2)
            assert server.scheduler.num_steps - before <= 6, "two steps, two in flight, and the time to close"

    asyncio.run(main())


def test_an_http_client_that_leaves_is_cancelled_within_two_steps(fake_card: ModelCard) -> None:
    async def main(stream: bool) -> None:
        async with serving(fake_card, slow_runner) as server:
            session = aiohttp.ClientSession()
            body = {"prompt": "abc", "max_tokens": 500, "ignore_eos": True, "stream": stream}
            asked = asyncio.create_task(session.post(f"{server.url}/v1/completions", json=body))
            await server.steps(5)
            if stream:
                (await asked).close()
            else:
                asked.cancel()
            await session.close()
            before = server.scheduler.num_steps
            await asyncio.gather(asked, return_exceptions=True)
            await server.rest(2)
            assert server.scheduler.num_steps - before <= 6

    asyncio.run(main(stream=True))
    asyncio.run(main(stream=False))


def test_a_full_queue_is_refused_at_the_door_and_costs_nobody_else(fake_card: ModelCard) -> None:
    toml = """
        stages.tokenize.inbox = 4
        stages.schedule.inbox = 1
        stages.schedule.options.max_waiting = 1
    """

    async def main() -> None:
        async with serving(fake_card, slow_runner, toml) as server:
            async with aiohttp.ClientSession() as session:
                asked = [completion(session, server.url, max_tokens=40) for _ in range(60)]
                answers = await asyncio.gather(*asked)
                refused = [answer["error"] for status, answer in answers if status == 429]
                assert len(refused) > 10 and {error["code"] for error in refused} == {"queue_full"}
                served = [answer for status, answer in answers if status == 200]
                assert len(served) >= 4 and len(served) + len(refused) == 60
                assert all(answer["usage"]["completion_tokens"] == 40 for answer in served)
            await server.rest()

    asyncio.run(main())


def test_a_stop_string_ends_the_request_and_the_scheduler_hears_of_it(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, slow_runner) as server:
            async with aiohttp.ClientSession() as session:
                _, whole = await completion(session, server.url, max_tokens=60, seed=3)
                text = whole["choices"][0]["text"]
                stop = text[10:14]
                _, stopped = await completion(session, server.url, max_tokens=60, seed=3, stop=stop)
                assert stopped["choices"][0]["text"] == text[: text.index(stop)]
                assert stopped["choices"][0]["finish_reason"] == "stop"
                assert stopped["usage"]["completion_tokens"] == text.index(stop) + 4
            await server.rest()

    asyncio.run(main())


def test_a_crash_of_the_device_answers_everybody_and_ends_the_server(fake_card: ModelCard) -> None:
    def fail_at_ten(plan: StepPlan) -> None:
        if plan.step_id == 10:
            raise RuntimeError("the device is on fire")

    answers: list[Any] = []

    async def serve() -> None:
        runner = FakeRunner(SMALL, fail_at_ten)
        toml = "stages.execute.options.max_restarts = 0"
        async with serving(fake_card, lambda: runner, toml) as server, aiohttp.ClientSession() as session:
            asked = [completion(session, server.url, max_tokens=60) for _ in range(6)]
            answers.extend(await asyncio.gather(*asked))

    async def main() -> None:
        with pytest.raises(StageCrashed, match="'execute' crashed"):
            await serve()
        assert [status for status, _ in answers] == [500] * 6
        assert all("fire" not in answer["error"]["message"] for _, answer in answers)

    asyncio.run(main())


def test_draining_lets_live_requests_finish_and_refuses_new_ones(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, slow_runner) as server, aiohttp.ClientSession() as session:
            asked = [asyncio.create_task(completion(session, server.url, max_tokens=50)) for _ in range(6)]
            await server.steps(3)
            server.until.set()
            await asyncio.sleep(STEP_S)
            status, refusal = await completion(session, server.url)
            assert (status, refusal["error"]["code"]) == (503, "draining")
            for status, answer in await asyncio.gather(*asked):
                assert status == 200 and answer["usage"]["completion_tokens"] == 50

    asyncio.run(main())


def test_metrics_add_up(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, slow_runner) as server, aiohttp.ClientSession() as session:
            await asyncio.gather(*(completion(session, server.url, max_tokens=5) for _ in range(7)))
            await completion(session, server.url, prompt="x" * 9000)
            async with session.get(f"{server.url}/metrics") as response:
                lines = (await response.text()).splitlines()
            values = {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}
            assert values['stageline_requests_total{finish_reason="length"}'] == 7
            assert values['stageline_rejected_total{code="context_length_exceeded"}'] == 1
            assert values['stageline_tokens_total{kind="output"}'] == 35
            assert values["stageline_ttft_seconds_count"] == values["stageline_e2e_seconds_count"] == 7
            assert 0 < values["stageline_ttft_seconds_sum"] < values["stageline_e2e_seconds_sum"]
            assert values["stageline_kv_blocks_used"] == 0
            total = sum(v for k, v in values.items() if k.startswith("stageline_segment_seconds_sum"))
            assert total == pytest.approx(values["stageline_e2e_seconds_sum"], rel=1e-6)

    asyncio.run(main())


async def wait_for_delta(ws: aiohttp.ClientWebSocketResponse) -> None:
    while (await ws.receive_json(timeout=5))["type"] != "delta":
        pass
