"""One visit to one server: start it, run every case once, stop it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import msgspec

from loadgen.clients import Client, Target, connect
from loadgen.clock import RunClock
from loadgen.content import Contents
from loadgen.errors import ServerError, first
from loadgen.openloop import OpenLoop
from loadgen.prefixes import Prefixes, TokenRange
from loadgen.record import Record
from loadgen.server_process import Patience, ServerProcess, free_port, serving
from loadgen.summary import spread
from loadgen.versus.cases import Case
from loadgen.versus.foreign import QUIET_CORES, ForeignCpu, busy_process, quiet
from loadgen.versus.servers import HOST, Server
from loadgen.versus.store import Run, Store, Visit
from loadgen.workload import Arrivals, Job, Workload

_STILL_S = 10.0
_SETTLE_S = 0.5
"""After a request has failed, before it is asked whether the server has ended."""
_WARM_UP = 16
"""Requests of a case, before the first that counts."""
_TURNS_A_ROUND = 1000


class Work(msgspec.Struct, frozen=True):
    """What is done on every visit."""

    cases: list[Case]
    patience: Patience
    timeout_s: float
    """Of one request."""
    quiet_s: float
    """How long each run waits for a quiet machine."""
    num_tries: int
    """A run that others disturbed is repeated, up to so many runs in all."""


async def visit(
    name: str, server: Server, number: int, work: Work, store: Store, say: Callable[[str], None]
) -> Visit:
    """What came of it, kept in `store`; a server that fails makes a failed visit, no error.

    Args:
        number: of the round, from 1.
        say: prints a line.
    """
    url = f"http://{HOST}:{(port := free_port())}"
    found = Visit(name, number, None, None, [], None)
    try:
        began_s = time.monotonic()
        async with _started(
            server.command_line(port), url, store.log(name, number), work, server, say
        ) as process:
            ready_s = time.monotonic() - began_s
            say(f"  ready after {ready_s:.1f} s")
            runs = await _all_cases(process, Target(url, "sse", server.model), number, work, say)
            found = Visit(name, number, ready_s, process.peak_rss_bytes(), runs, None)
    except* ServerError as group:
        found = Visit(name, number, None, None, [], str(first(group)))
        say(f"  failed: {found.failure}")
    store.keep(found)
    return found


@asynccontextmanager
async def _started(
    command: list[str], url: str, log: Path, work: Work, server: Server, say: Callable[[str], None]
) -> AsyncIterator[ServerProcess]:
    """The server, ready; a line every few seconds until it is."""
    patience = msgspec.structs.replace(work.patience, ready_path=server.ready_path)
    waiting = asyncio.ensure_future(_tell(say, patience.ready_s))
    try:
        async with serving(command, url, log, patience) as process:
            waiting.cancel()
            yield process
    finally:
        waiting.cancel()


async def _tell(say: Callable[[str], None], ready_s: float) -> None:
    began_s = time.monotonic()
    while True:
        await asyncio.sleep(_STILL_S)
        say(f"  not ready after {time.monotonic() - began_s:.0f} s (at most {ready_s:g} s)")


async def _all_cases(
    process: ServerProcess, target: Target, number: int, work: Work, say: Callable[[str], None]
) -> list[Run]:
    """The run of each case that counts; a disturbed one only where no try was quiet."""
    clock, turn = RunClock(), number * _TURNS_A_ROUND
    runs = []
    async with connect(target, clock) as (client, _):
        for case in work.cases:
            if not case.is_beside_busy:
                warm_up = msgspec.structs.replace(case, asks=case.asks[:_WARM_UP])
                await _answers(warm_up, client, clock, turn, work)
            for _ in range(work.num_tries):
                turn += 1
                run = await _run(case, process, client, clock, turn, work)
                say(f"  {_line(run)}")
                if not run.is_disturbed:
                    break
            runs.append(run)
    return runs


async def _run(
    case: Case, process: ServerProcess, client: Client, clock: RunClock, turn: int, work: Work
) -> Run:
    """Raises ServerError if a request fails."""
    if work.quiet_s:
        await quiet(process, work.quiet_s)
    async with busy_process() if case.is_beside_busy else nullcontext() as busy_pid:
        foreign = ForeignCpu(process, busy_pid)
        records = await _answers(case, client, clock, turn, work)
        cores = foreign.look()
    await _check(records, process)
    return Run(
        case=case.name,
        measures=_measures(case, records),
        foreign_cores=cores,
        is_disturbed=cores is not None and cores >= QUIET_CORES,
        num_off=sum(record.num_output != record.planned_output for record in records),
    )


async def _answers(case: Case, client: Client, clock: RunClock, turn: int, work: Work) -> list[Record]:
    prompts = case.prompts(turn)
    jobs = [Job(i, 0.0, len(prompts[i]), ask.max_tokens) for i, ask in enumerate(case.asks)]
    workload = Workload(jobs, 0, 0, _ALL_AT_ONCE, num_users=case.num_users)
    loop = OpenLoop(workload, client, _Given(prompts), clock, work.timeout_s)
    await loop.run()
    return loop.records


_ALL_AT_ONCE = Arrivals("closed", "burst", 0, 0, 0, 0.0, None, None)


class _Given(Contents):
    """Prompts by the jobs' index."""

    def __init__(self, prompts: list[list[int]]) -> None:
        super().__init__(None, Prefixes(0, TokenRange()))
        self._prompts = prompts

    def prompt(self, job: Job) -> list[int]:
        return self._prompts[job.index]


async def _check(records: list[Record], process: ServerProcess) -> None:
    failed = [record.failure for record in records if record.failure is not None]
    if failed:
        await asyncio.sleep(_SETTLE_S)
    if failed or process.exit_code is not None:
        ended = "" if process.exit_code is None else f"the server ended with code {process.exit_code}; "
        what = (
            f"{len(failed)} of {len(records)} requests failed, the first: {failed[0].message}"
            if failed
            else ""
        )
        raise ServerError(f"{ended}{what}; the end of {process.log}:\n{process.tail()}")


def _measures(case: Case, records: list[Record]) -> dict[str, float]:
    """By name: "decode: tok/s", "load: TTFT p99 ms", ..."""
    ttft, tpot = spread(record.ttft_s for record in records), spread(record.tpot_s for record in records)
    wall_s = max(record.closed_s or 0.0 for record in records)
    found: dict[str, float] = {}
    if case.asks[0].kind == "load":
        found["output tok/s"] = sum(record.num_output for record in records) / wall_s
        for title, each in (("TTFT", ttft), ("TPOT", tpot)):
            if each is not None:
                found |= {f"{title} p50 ms": each.p50_ms, f"{title} p99 ms": each.p99_ms}
    elif case.asks[0].kind == "prefill" and ttft is not None:
        found["tok/s"] = len(case.asks[0].prompt_ids) / ttft.p50_ms * 1000
        found["TTFT ms"] = ttft.p50_ms
    elif tpot is not None:
        found["tok/s"] = 1000 / tpot.p50_ms
    return {f"{case.name}: {name}": value for name, value in found.items()}


def _line(run: Run) -> str:
    figures = ", ".join(f"{name.rpartition(': ')[2]} {value:.1f}" for name, value in run.measures.items())
    line = f"{run.case}: {figures}"
    if run.num_off:
        line += f"; {run.num_off} answers of another length than asked"
    return line + (f"; DISTURBED, others used {run.foreign_cores:.2f} cores" if run.is_disturbed else "")
