"""The whole server under many clients, each stage's cost taken from /metrics.

The server runs in a process of its own on one core (bench.server), the clients in this one on the others.
Its runner costs nothing, so all that is measured is the pipeline.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from time import perf_counter, process_time
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict

from pipeline.bench import cores
from pipeline.bench.clients import Tally, connect
from pipeline.bench.scrape import Key, moved, scrape
from pipeline.bench.server import HOST, ServerSettings, blueprint_of
from pipeline.errors import StagelineError
from pipeline.messages import DeviceReady

PROMPT = "The quick brown fox jumps over the lazy dog; then it sits down to think."
BLOCK_SIZE = 16
_STOP_S = 15.0


class WholeSettings(msgspec.Struct, frozen=True):
    num_clients: int
    seconds: float
    max_tokens: int
    """Of each request."""
    protocol: str
    config: str | None = None
    stream_options: dict[str, int | float] = {}
    measures_seeing: bool = False
    recorded: str | None = None
    profile: str | None = None


class LinkCost(msgspec.Struct, frozen=True):
    """What reached one stage's inbox, per step."""

    stage: str
    sends: float
    posts: float
    wakeups: float


class WholeResult(msgspec.Struct, frozen=True):
    """Of the measured time alone; the seconds before it warm up."""

    seconds: float
    is_pinned: bool
    tokens: int
    chunks: int
    requests: int
    failures: list[str]
    num_failures: int
    cpu_s: float
    """Of the server's process, all threads."""
    client_cpu_s: float
    """Of this process; near `seconds` it is the clients that are measured, not the server."""
    steps: float
    busy_s: dict[str, float]
    """By stage, wall time in handle(); `device` is the runner's thread."""
    links: list[LinkCost]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def cpu_us_per_token(self) -> float:
        return self.cpu_s / self.tokens * 1e6 if self.tokens else 0.0

    def as_dict(self) -> dict[str, object]:
        """For JSON: the fields and what follows from them."""
        derived = {"tokens_per_s": self.tokens_per_s, "cpu_us_per_token": self.cpu_us_per_token}
        return asdict(self) | derived | {"links": [asdict(link) for link in self.links]}


class _Mark(NamedTuple):
    """How things stand at one moment."""

    at_s: float
    client_cpu_s: float
    tally: Tally
    counters: dict[Key, float]


async def measure(settings: WholeSettings) -> WholeResult:
    """Start the server, load it, take it down. Raises ConfigError, StagelineError if it does not start."""
    division = cores.divide()
    server = ServerSettings(
        _capacity(settings),
        settings.config,
        settings.stream_options,
        sorted(division.server) if division else None,
        settings.measures_seeing,
        settings.recorded,
        settings.profile,
    )
    names = blueprint_of(
        server
    ).graph.names  # a fault of the configuration shows here, not in another process
    with cores.kept_to(division.clients if division else None):
        async with _started(server) as port:
            before, after = await _load(settings, port)
    return _result(before, after, names[1:], is_pinned=division is not None)


async def _load(settings: WholeSettings, port: int) -> tuple[_Mark, _Mark]:
    """Run the clients: how things stood when they were warm, and at the end."""
    tally, clients = await connect(
        settings.protocol, settings.num_clients, HOST, port, PROMPT, settings.max_tokens
    )
    try:
        await asyncio.sleep(min(3.0, settings.seconds / 2))
        before = await _mark(port, tally)
        await asyncio.sleep(settings.seconds)
        return before, await _mark(port, tally)
    finally:
        for client in clients:
            client.close()


async def _mark(port: int, tally: Tally) -> _Mark:
    counters = await scrape(HOST, port)
    return _Mark(perf_counter(), process_time(), replace(tally), counters)


@asynccontextmanager
async def _started(settings: ServerSettings) -> AsyncIterator[int]:
    """The server's process; its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pipeline.bench.server",
        msgspec.json.encode(settings).decode(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line.strip().isdigit():
            raise StagelineError("the server of the bench did not start; its reason stands above")
        yield int(line)
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _capacity(settings: WholeSettings) -> DeviceReady:
    """Room for every client's longest sequence at once: nobody waits, nobody is preempted."""
    longest = len(PROMPT) + settings.max_tokens
    return DeviceReady(
        num_blocks=settings.num_clients * -(-longest // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_num_seqs=settings.num_clients,
        max_num_batched_tokens=max(2048, 2 * settings.num_clients),
    )


def _result(before: _Mark, after: _Mark, names: Sequence[str], *, is_pinned: bool) -> WholeResult:
    """`names`: of the stages whose inboxes are looked at."""
    change = moved(before.counters, after.counters)
    steps = change.get(("stageline_steps_total", ""), 0.0)
    busy_s = {name: change[("stageline_stage_busy_seconds_total", name)] for name in names}
    return WholeResult(
        seconds=after.at_s - before.at_s,
        is_pinned=is_pinned,
        tokens=after.tally.tokens - before.tally.tokens,
        chunks=after.tally.chunks - before.tally.chunks,
        requests=after.tally.requests - before.tally.requests,
        failures=after.tally.failures,
        num_failures=after.tally.num_failures,
        cpu_s=change[("stageline_process_cpu_seconds_total", "")],
        client_cpu_s=after.client_cpu_s - before.client_cpu_s,
        steps=steps,
        busy_s=busy_s | {"device": change.get(("stageline_device_busy_seconds_total", ""), 0.0)},
        links=[_link_cost(change, name, max(steps, 1.0)) for name in names],
    )


def _link_cost(change: dict[Key, float], stage: str, steps: float) -> LinkCost:
    sends, posts, wakeups = (
        change[(f"stageline_inbox_{count}_total", stage)] / steps for count in ("sent", "posted", "wakeups")
    )
    return LinkCost(stage, sends, posts, wakeups)
