"""`stageline serve` with the real model: its device worker is killed, again and again."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.test_process import Process

pytestmark = pytest.mark.model

TOML = """
[device]
device = "cpu"
placement = "process"
num_blocks = 256
num_threads = 2
host_kv_memory = "8MiB"
disk_kv = "{folder}/kv"
disk_kv_memory = "64MiB"
[admin]
enabled = false
[stages.execute.options]
max_restarts = 1
"""
NUM_STREAMS, NUM_TOKENS = 20, 24


def worker_of(server: Process) -> int:
    """The one child of a server."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0])


async def answers(session: aiohttp.ClientSession, url: str) -> list[tuple[int, str]]:
    """Status and text of greedy and of seeded requests, all at the same time."""

    async def answer(number: int) -> tuple[int, str]:
        body: dict[str, Any] = {
            "prompt": f"The number {number} is special, for",
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
            "temperature": number % 2,
            "seed": number,
        }
        async with session.post(f"{url}/v1/completions", json=body) as response:
            answered = await response.json()
            return response.status, answered["choices"][0]["text"] if response.status == 200 else ""

    return await asyncio.gather(*(answer(number) for number in range(NUM_STREAMS)))


@pytest.mark.timeout(240)
def test_a_killed_worker_changes_no_text_and_past_the_budget_the_server_ends(tmp_path: Path) -> None:
    server = Process(tmp_path, toml=TOML.format(folder=tmp_path))
    try:
        asyncio.run(kill_twice(server, server.wait_ready()))
        assert server.wait() == 1, server.said
        assert server.said.count("the device is lost") == 1 and "the pipeline ended" in server.said
    finally:
        server.process.kill()
        server.process.wait()


async def kill_twice(server: Process, url: str) -> None:
    async with aiohttp.ClientSession() as session:
        undisturbed = await answers(session, url)
        assert all(status == 200 for status, _ in undisturbed)
        worker = worker_of(server)
        asked = asyncio.create_task(answers(session, url))
        await asyncio.sleep(0.3)
        os.kill(worker, signal.SIGKILL)
        assert await asked == undisturbed
        assert worker_of(server) != worker
        asked = asyncio.create_task(answers(session, url))
        await asyncio.sleep(0.3)
        os.kill(worker_of(server), signal.SIGKILL)
        assert {status for status, _ in await asked} <= {200, 500}
