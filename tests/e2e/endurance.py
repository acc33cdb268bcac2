"""Endurance: a real server whose KV pool holds a quarter of what its clients want, for as long as is asked.

    python -m tests.e2e.endurance --seconds 600

Clients stream over real sockets, one request after the other, with prompts and answers of mixed lengths; half
of the prompts begin alike, and a fifth of the clients go away in the middle. It fails if a request does, if a
block is held in the end, if preemptions are out of bounds or memory grows; and prints what was measured.
"""

import argparse
import asyncio
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

import aiohttp
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from pipeline.checkpoint.reference import DEFAULT_REFERENCE

BLOCK = 16
PROMPTS, ANSWERS = (8, 400), (4, 120)
"""Tokens, evenly between."""
NUM_CLIENTS = 32
MEMORY_SHARE = 0.25
"""Of what so many requests come to hold on average."""
MAX_PREEMPTIONS = 3
"""The default of stages.schedule.options.max_preemptions."""
LEAVE_SHARE = 0.2
SETTLE_SHARE = 0.2
"""Of the run: rings and heaps fill up; memory is judged from then on."""
TOML = """
[device]
device = "cpu"
num_blocks = {num_blocks}
max_num_seqs = {num_clients}
[stages.schedule.options]
max_wait_ms = 0
"""


@dataclass
class Report:
    """What a run has come to. RSS in MiB."""

    seconds: float
    num_clients: int
    num_blocks: int
    num_answered: int = 0
    num_left: int = 0
    failures: list[str] = field(default_factory=list)
    output_tokens: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    blocks_held: int = -1
    """In the end."""
    max_blocks_used: int = 0
    rss_settled: float = 0.0
    rss_end: float = 0.0
    rss_slope_per_min: float = 0.0
    """Least squares over the time after SETTLE_SHARE."""

    @property
    def preemptions_per_request(self) -> float:
        return self.preemptions / max(1, self.num_answered + self.num_left)


class Load:
    """The clients."""

    def __init__(self, url: str, seed: int, report: Report) -> None:
        self._url = url
        self._chance = random.Random(seed)
        self._report = report
        self._numbers = count()

    async def run(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=900)  # on a machine that others use as well
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self._report.num_clients):
                group.create_task(self._client(session, end))

    async def _client(self, session: aiohttp.ClientSession, end: float) -> None:
        while asyncio.get_running_loop().time() < end:
            try:
                await self._ask(session)
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                self._report.failures.append(repr(error)[:200])

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        chance, report = self._chance, self._report
        num_prompt, num_answer = chance.randint(*PROMPTS), chance.randint(*ANSWERS)
        leaves_after = chance.randrange(num_answer) if chance.random() < LEAVE_SHARE else None
        body = {
            "prompt": self._prompt(num_prompt),
            "max_tokens": num_answer,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": next(self._numbers),
        }
        async with session.post(f"{self._url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise ValueError(f"{response.status}: {await response.text()}")
            num_chunks, usage = 0, None
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise ValueError(chunk["error"])
                usage, num_chunks = chunk.get("usage") or usage, num_chunks + 1
                if leaves_after is not None and num_chunks > leaves_after // 4:
                    report.num_left += 1
                    return  # the socket is closed with the answer half read
        if usage is None or usage["completion_tokens"] != num_answer:
            raise ValueError(f"an answer of {num_answer} tokens ended with {usage}")
        report.num_answered += 1
        report.output_tokens += num_answer

    def _prompt(self, num_tokens: int) -> list[int]:
        chance = self._chance
        shared = num_tokens // 2 if chance.random() < 0.5 else 0
        return [1000 + k for k in range(shared)] + [
            chance.randrange(1000, 40_000) for _ in range(num_tokens - shared)
        ]


class Watch:
    """Looks at the server once a second."""

    def __init__(self, pid: int, url: str) -> None:
        self.times_s: list[float] = []
        self.rss_mib: list[float] = []
        self.max_blocks_used = 0
        self._pid = pid
        self._url = url

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession() as session:
            while True:
                self.times_s.append(loop.time())
                self.rss_mib.append(rss_mib(self._pid))
                values = await scrape(session, self._url)
                self.max_blocks_used = max(self.max_blocks_used, int(values["stageline_kv_blocks_used"]))
                await asyncio.sleep(1)

    def judge(self, report: Report) -> None:
        first = int(len(self.times_s) * SETTLE_SHARE)
        times, rss = np.array(self.times_s[first:]) / 60, np.array(self.rss_mib[first:])
        report.rss_settled, report.rss_end = round(float(rss[0]), 1), round(float(rss[-1]), 1)
        report.rss_slope_per_min = round(float(np.polyfit(times, rss, 1)[0]), 3) if len(rss) > 2 else 0.0
        report.max_blocks_used = self.max_blocks_used


async def endure(seconds: float, model: str, num_clients: int = NUM_CLIENTS, seed: int = 0) -> Report:
    """Serve, load, look, and come to rest."""
    mean_tokens = (sum(PROMPTS) + sum(ANSWERS)) / 2
    report = Report(seconds, num_clients, int(MEMORY_SHARE * num_clients * mean_tokens / BLOCK))
    async with serving(model, report) as (pid, url):
        watch = Watch(pid, url)
        watching = asyncio.create_task(watch.run())
        try:
            await Load(url, seed, report).run(seconds)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        watch.judge(report)
        await rest(url, report)
    return report


async def rest(url: str, report: Report) -> None:
    """Wait until nobody runs, then look at what is held."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            values = await scrape(session, url)
            if not values["stageline_requests_running"] + values["stageline_requests_waiting"]:
                break
            await asyncio.sleep(0.2)
        report.blocks_held = int(values["stageline_kv_blocks_used"])
        report.preemptions = int(values["stageline_preemptions_total"])
        report.cached_tokens = int(values["stageline_prefix_hit_tokens_total"])


@asynccontextmanager
async def serving(model: str, report: Report) -> AsyncIterator[tuple[int, str]]:
    """A server process; its id and URL. It is drained in the end, and must say goodbye."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "endurance.toml"
        config.write_text(TOML.format(num_blocks=report.num_blocks, num_clients=report.num_clients))
        command = ["-m", "pipeline", "serve", "--config", str(config), "--model", model]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, "--port", "0", "--admin-port", "off",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        assert process.stdout is not None
        reading: asyncio.Task[str] | None = None
        try:
            said = ""
            while not (found := re.search(r"is ready after .* at (http://\S+)", said)):
                line = await process.stdout.readline()
                assert line, f"the server ended: {said}"
                said += line.decode()
            reading = asyncio.create_task(_rest_of(process.stdout))
            yield process.pid, found[1]
        finally:
            if process.returncode is None:
                process.terminate()
            said = await reading if reading is not None else ""
            code = await process.wait()
        assert code == 0 and "Goodbye" in said, said[-2000:]


async def _rest_of(stream: asyncio.StreamReader) -> str:
    """What was said last: a pipe that nobody reads would fill up."""
    said = b""
    while part := await stream.read(65_536):
        said = (said + part)[-10_000:]
    return said.decode(errors="replace")


async def scrape(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """The metrics that have no labels."""
    async with session.get(f"{url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
        return {each.name: each.value for family in families for each in family.samples if not each.labels}


def rss_mib(pid: int) -> float:
    """Of a process and those that it has started: the device worker is one."""
    match = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match is not None
    children = [
        child for each in Path(f"/proc/{pid}/task").glob("*/children") for child in each.read_text().split()
    ]
    return int(match[1]) / 1024 + sum(rss_mib(int(child)) for child in children)


def faults(report: Report, max_slope_per_min: float) -> list[str]:
    """What a run must not have, and has."""
    checks = {
        f"requests failed: {report.failures[:5]}": not report.failures,
        "nobody was answered": report.num_answered > 0,
        "nobody left": report.num_left > 0,
        f"{report.blocks_held} blocks are held": report.blocks_held == 0,
        "the pool was never full": report.max_blocks_used > 0.9 * report.num_blocks,
        f"{report.preemptions_per_request:.2f} preemptions a request": 0
        < report.preemptions_per_request
        <= MAX_PREEMPTIONS,
        f"RSS grows by {report.rss_slope_per_min} MiB a minute": report.rss_slope_per_min
        <= max_slope_per_min,
    }
    return [fault for fault, is_fine in checks.items() if not is_fine]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.endurance", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--model", default=DEFAULT_REFERENCE)
    parser.add_argument("--clients", type=int, default=NUM_CLIENTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-slope", type=float, default=1.0, metavar="MIB", help="a minute")
    arguments = parser.parse_args()
    report = asyncio.run(endure(arguments.seconds, arguments.model, arguments.clients, arguments.seed))
    for name, value in asdict(report).items():
        print(f"{name:22} {value if name != 'failures' else len(value)}")
    print(f"{'preemptions_per_request':22} {report.preemptions_per_request:.3f}")
    found = faults(report, arguments.max_slope)
    print("\n".join(found) or "no fault")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
