"""Readings of a running pipeline, one after the other."""

import asyncio
import time

import aiohttp

from pipeline.admin.live import WINDOW_TICKS, Live
from pipeline.checkpoint.fake import byte_card
from pipeline.messages import StepPlan
from pipeline.runtime.testing import FakeRunner
from pipeline.telemetry import SwapRecord
from tests.e2e.world import Server, serving


def slow(plan: StepPlan) -> None:
    time.sleep(0.25)


async def ask(server: Server, max_tokens: int) -> None:
    body = {"prompt": "hello", "max_tokens": max_tokens, "ignore_eos": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/v1/completions", json=body) as response,
    ):
        assert response.status == 200


def test_a_device_is_busy_although_its_step_has_not_ended() -> None:
    """Readings come quicker than steps end."""

    async def main() -> None:
        async with serving(byte_card(), lambda: FakeRunner(before_step=slow)) as server:
            live = Live(server.pipeline)
            idle = live.tick()
            assert idle.stages[3].busy == 0 and idle.totals.live == 0
            async with asyncio.TaskGroup() as group:
                group.create_task(ask(server, 6))
                await server.steps(1)
                seen = []
                for _ in range(10):
                    await asyncio.sleep(0.1)
                    reading = live.tick()
                    seen.append(reading.stages[3].busy)
                    assert reading.totals.live == 1
            assert min(seen[WINDOW_TICKS:]) > 0.6, seen
            for _ in range(WINDOW_TICKS + 1):
                await asyncio.sleep(0.05)
                last = live.tick()
            assert last.stages[3].busy == 0 and last.totals.live == 0

    asyncio.run(main())


def test_each_record_is_told_once() -> None:
    async def main() -> None:
        async with serving(byte_card(), FakeRunner) as server:
            live = Live(server.pipeline)
            steps: list[int] = []
            requests: list[int] = []
            for _ in range(3):
                await ask(server, 5)
                reading = live.tick()
                steps += reading.steps.id
                requests += [request.id for request in reading.requests]
            assert requests == [1, 2]  # the first one ended before the first reading began
            assert steps == sorted(set(steps)) and len(steps) == 10
            assert len(live.backlog().requests) == 3

            swap = SwapRecord(time.perf_counter_ns(), "sample", "a:A", "b:B", "swapped", "", 9000)
            server.pipeline.telemetry.swapped(swap)
            assert [len(live.tick().swaps) for _ in range(2)] == [1, 0]
            assert [each.now for each in live.backlog().swaps] == ["b:B"]

    asyncio.run(main())
