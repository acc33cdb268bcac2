"""What an open live page costs the server: CPU time with a page's feed open, against none, in turns.

    python -m tests.perf.live_page_cost [--clients 32] [--window-s 30] [--rounds 4]

Run it on a quiet machine. The server is a process of its own with a runner that takes 4 ms a step; this
process is its clients and its page, which reads the feed and asks the doctor as often as the real one does:
a window of 30 s has one judgement in it.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from pipeline import admin
from pipeline import config as configuration
from pipeline.checkpoint.fake import byte_card
from pipeline.messages import StepPlan
from pipeline.runtime.testing import FakeRunner
from tests.e2e.world import serving

DIAGNOSIS_S = 30


def step(plan: StepPlan) -> None:
    time.sleep(0.004)


async def serve() -> None:
    """The server process: prints both addresses, lives until its input ends."""
    card, config = byte_card(), configuration.loads("[admin]\nport = 0", "cost")
    async with (
        serving(card, lambda: FakeRunner(before_step=step)) as server,
        admin.beside(server.pipeline, config, card) as page,
    ):
        assert page is not None
        page.door_is_open()
        print(server.url, page.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def cpu_ns(pid: int) -> int:
    """CPU time of all threads (Linux: /proc/PID/task/TID/schedstat)."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


async def client(session: aiohttp.ClientSession, url: str) -> None:
    body: dict[str, Any] = {"prompt": "tell me " * 8, "max_tokens": 100, "ignore_eos": True, "stream": True}
    while True:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            await response.read()


async def look(session: aiohttp.ClientSession, url: str) -> None:
    """What a page does."""

    async def follow() -> None:
        async with session.get(f"{url}/api/live") as response:
            async for _ in response.content.iter_any():
                pass

    async def ask() -> None:
        await asyncio.sleep(DIAGNOSIS_S / 2)  # so that a window has its share of them
        while True:
            async with session.get(f"{url}/api/diagnosis?last_s=30") as response:
                await response.read()
            await asyncio.sleep(DIAGNOSIS_S)

    await asyncio.gather(follow(), ask())


@asynccontextmanager
async def running(*jobs: Any) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def share(pid: int, window_s: float) -> float:
    """Cores that the process uses."""
    await asyncio.sleep(1)
    began, used = time.perf_counter_ns(), cpu_ns(pid)
    await asyncio.sleep(window_s)
    return (cpu_ns(pid) - used) / (time.perf_counter_ns() - began)


async def compare(name: str, pid: int, page_url: str, window_s: float, rounds: int) -> None:
    async def opened() -> float:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as session, running(look(session, page_url)):
            return await share(pid, window_s)

    pairs = []
    for number in range(rounds):
        if number % 2:  # a load that changes with time favours neither
            cost = await opened()
            pairs.append((await share(pid, window_s), cost))
        else:
            pairs.append((await share(pid, window_s), await opened()))
    costs = sorted(opened - closed for closed, opened in pairs)
    print(
        f"{name}: {median(pair[0] for pair in pairs):.2%} of a core closed, open costs "
        f"{median(costs):+.2%} (from {costs[0]:+.2%} to {costs[-1]:+.2%}, {rounds} rounds)",
        flush=True,
    )


async def measure(args: argparse.Namespace) -> None:
    command = (sys.executable, "-m", "tests.perf.live_page_cost", "serve")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None and process.stdin is not None
    url, page_url = (await process.stdout.readline()).decode().split()
    try:
        await compare("idle", process.pid, page_url, args.window_s, args.rounds)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            running(*(client(session, url) for _ in range(args.clients))),
        ):
            await compare(f"{args.clients} clients", process.pid, page_url, args.window_s, args.rounds)
    finally:
        process.stdin.close()
        await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", choices=["serve"])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--window-s", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    asyncio.run(serve() if args.role else measure(args))


if __name__ == "__main__":
    main()
