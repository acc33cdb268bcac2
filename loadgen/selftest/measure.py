"""One load, sent by the generator as in a replay, to the fake server in another process on other cores."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from loadgen.calibrate import by_rate
from loadgen.clients import connect
from loadgen.clients.connect import target
from loadgen.clock import RunClock, sample_loop_lag
from loadgen.content import Contents
from loadgen.errors import ServerError, UsageError
from loadgen.openloop import OpenLoop
from loadgen.prefixes import Prefixes, TokenRange
from loadgen.prompts import load_text
from loadgen.record import Record
from loadgen.steady import steady
from loadgen.summary import summarise
from loadgen.timing import Renewal, drawn_s
from loadgen.workload import Arrivals, Job, Workload

_GAP_S = 0.02
_PROMPT_TOKENS = 100
_SOCKETS = 8
_READY_S = 20.0


class Load(msgspec.Struct, frozen=True):
    """`rate` requests/s (Poisson) of `tokens` tokens, for `seconds`."""

    protocol: str
    rate: float
    tokens: int
    seconds: float


class Figures(msgspec.Struct, frozen=True):
    """What the generator did, on one core where the system can bind it to one."""

    load: Load
    requests_per_s: float
    """Started."""
    chunks_per_s: float
    """Received, each a frame or event of its own, from the first answer's end to the last request's start."""
    num_failed: int
    cpu_share: float
    """CPU time of the generator's process / wall time."""
    us_per_chunk: float
    """That CPU time over the chunks: the requests' share of it is in it."""
    p99_lateness_ms: float
    p99_loop_lag_ms: float
    client_bound: list[str]
    """Why this load is too much; empty: it was sustained."""


async def measure(load: Load) -> Figures:
    """Sends it, at once.

    Raises:
        UsageError: sending ends before the first answer does.
        ServerError: the fake server does not start.
    """
    if load.seconds <= 2 * load.tokens * _GAP_S:
        raise UsageError(
            f"--seconds {load.seconds:g}: an answer of {load.tokens} tokens takes half of it or more"
        )
    async with _fake_server() as url:
        clock, lags_s = RunClock(), list[float]()
        async with connect(target(url, load.protocol, "fake", _SOCKETS), clock) as (client, _):
            run = OpenLoop(_workload(load), client, _contents(), clock, timeout_s=60)
            cpu_s = time.process_time()
            with steady():
                async with asyncio.TaskGroup() as group:
                    sampler = group.create_task(sample_loop_lag(lags_s))
                    await run.run()
                    sampler.cancel()
            cpu_s = time.process_time() - cpu_s
    return _figures(load, run.records, lags_s, cpu_s)


def _figures(load: Load, records: list[Record], lags_s: list[float], cpu_s: float) -> Figures:
    last_s = max(record.sent_s or 0.0 for record in records)
    full_s = load.tokens * _GAP_S
    num_chunks = sum(len(record.chunk_s) for record in records)
    num_steady = sum(full_s <= at <= last_s for record in records for at in record.chunk_s)
    summary = summarise(records, len(records), 1 / load.rate, lags_s, None)
    return Figures(
        load,
        len(records) / last_s,
        num_steady / (last_s - full_s),
        sum(summary.failures.values()),
        cpu_s / summary.wall_s,
        1e6 * cpu_s / max(1, num_chunks),
        summary.lateness.p99_ms if summary.lateness else 0.0,
        summary.loop_lag.p99_ms if summary.loop_lag else 0.0,
        summary.client_bound,
    )


def _workload(load: Load) -> Workload:
    times = drawn_s(Renewal(load.rate, 1), max(2, round(load.rate * load.seconds)), None, 0)
    jobs = [Job(i, at_s, _PROMPT_TOKENS, load.tokens) for i, at_s in enumerate(times)]
    plain = Arrivals(f"poisson={load.rate:g}", "burst", len(jobs), 0, 0, times[-1], load.rate, 1.0)
    return Workload(jobs, 0, 0, plain)


def _contents() -> Contents:
    return Contents(by_rate(load_text(None), 1.3, 0), Prefixes(0, TokenRange()))


@asynccontextmanager
async def _fake_server() -> AsyncIterator[str]:
    """Its URL. With two cores or more, it and this process are kept apart."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadgen.selftest.fake_server",
        "--gap-s",
        str(_GAP_S),
        stdout=asyncio.subprocess.PIPE,
    )
    cores = _keep_apart(process.pid)
    try:
        if process.stdout is None:
            raise ServerError("the fake server has no output")
        line = await asyncio.wait_for(process.stdout.readline(), _READY_S)
        if not line:
            raise ServerError("the fake server ended before it began")
        yield f"http://127.0.0.1:{int(line)}"
    finally:
        if cores:
            os.sched_setaffinity(0, cores)
        if process.returncode is None:
            process.kill()
        await process.wait()


def _keep_apart(server_pid: int) -> set[int]:
    """This process on one core, the server on the others; the cores to go back to, or none."""
    if not hasattr(os, "sched_setaffinity"):
        return set()
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        return set()
    mine = min(cores)
    os.sched_setaffinity(server_pid, cores - {mine})
    os.sched_setaffinity(0, {mine})
    return cores
