"""One cell: start the server, replay the workload against it, watch both, stop it."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console

from loadgen.clients import Target
from loadgen.clock import RunClock
from loadgen.errors import LoadgenError, ServerError, first
from loadgen.interrupts import Interrupted, cancel_on_signals
from loadgen.openloop import OpenLoop
from loadgen.replay import Options, Run, measure
from loadgen.scrape import Scrape, fetch, gauge
from loadgen.server_process import Patience, ServerProcess, free_port, machine_cpu_s, serving
from loadgen.tune.cells import Cell
from loadgen.tune.chain import Cpu, Watched, of_clients, of_server
from loadgen.tune.store import CellResult, Repeat, Store
from loadgen.tune.toml_text import dumps

HOST = "127.0.0.1"
_SAMPLE_S = 0.5
_SETTLE_S = 0.2
"""After the last answer, before the server's counters are read: a request is counted when it is let go of."""


class Work(msgspec.Struct, frozen=True):
    """What is done to every cell."""

    options: Options
    """Of the replay; the target's URL and the seed are set for each run."""
    command: list[str]
    """Of the server; {config}, {host} and {port} are filled in, else --config FILE --port PORT are added."""
    repeats: int
    patience: Patience


async def run_cell(cell: Cell, work: Work, store: Store, say: Callable[[str], None]) -> CellResult:
    """The cell's result, kept in `store`; a server that fails makes a failed cell, no error.

    Raises:
        Interrupted: Ctrl-C; nothing is kept.
        UsageError: a file cannot be written.
    """
    config = store.path(cell, ".toml")
    config.write_text(dumps(cell.config), encoding="utf-8")
    port, began_s = free_port(), time.monotonic()
    target = msgspec.structs.replace(work.options.target, url=f"http://{HOST}:{port}")
    runs, failure = list[Repeat](), None
    try:
        command = command_line(work.command, config, port)
        async with serving(command, target.url, store.path(cell, ".server.log"), work.patience) as server:
            while not _is_enough(runs, work.repeats):
                runs.append(await _repeat(work, target, server, len(runs), store.path(cell, ".replay.log")))
                say(_line(runs))
    except* ServerError as group:
        runs, failure = [], str(first(group))
    return store.keep(cell, runs, failure, time.monotonic() - began_s)


def _is_enough(runs: list[Repeat], repeats: int) -> bool:
    """A client-bound run is repeated, as often as there are repeats."""
    num_bound = sum(bool(run.client_bound) for run in runs)
    return len(runs) - num_bound >= repeats or len(runs) >= 2 * repeats


def command_line(command: list[str], config: Path, port: int) -> list[str]:
    """`command` with its places filled in, or with --config and --port added if it has none."""
    places = {"{config}": str(config), "{host}": HOST, "{port}": str(port)}
    filled = [_filled(word, places) for word in command]
    return filled if filled != command else [*command, "--config", str(config), "--port", str(port)]


def _filled(word: str, places: dict[str, str]) -> str:
    for place, value in places.items():
        word = word.replace(place, value)
    return word


async def _repeat(work: Work, target: Target, server: ServerProcess, number: int, log: Path) -> Repeat:
    """Raises ServerError if the server ends, or no request at all finishes."""
    seed = work.options.seed + number
    pacing = msgspec.structs.replace(work.options.pacing, seed=seed)
    options = msgspec.structs.replace(work.options, target=target, seed=seed, pacing=pacing)
    async with aiohttp.ClientSession() as session:
        watcher = _Watcher(session, target.url, server)
        with log.open("a", encoding="utf-8") as output:
            run = await measure(options, Console(file=output, width=120), watcher.watch)
        cancel_on_signals()
        if run.is_stopped:
            raise Interrupted
        _check(run, server)
        await asyncio.sleep(_SETTLE_S)
        watched = await watcher.watched(run.summary.wall_s)
    measures = of_clients(run.summary) | of_server(watched)
    return Repeat(seed, measures, run.summary.client_bound, run.workload.span_s, run.summary.wall_s)


def _check(run: Run, server: ServerProcess) -> None:
    if server.exit_code is not None:
        raise ServerError(
            f"the server ended with code {server.exit_code} during the run; the end of {server.log}:\n"
            f"{server.tail()}"
        )
    if not run.summary.num_finished:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in run.summary.failures.items())
        raise ServerError(f"no request finished ({reasons}); the end of {server.log}:\n{server.tail()}")


class _Watcher:
    """Reads the server's counters as the run begins, and its peaks while it goes on."""

    def __init__(self, session: aiohttp.ClientSession, url: str, server: ServerProcess) -> None:
        self._session = session
        self._url = url
        self._server = server
        self._before: str | None = None
        self._cpu_before: Cpu | None = None
        self._kv_peak: float | None = None
        self._rss_peak: int | None = None

    async def watch(self, run: OpenLoop, clock: RunClock) -> None:
        """Runs until cancelled."""
        self._cpu_before = self._cpu()
        self._before = await self._text()
        while True:
            await asyncio.sleep(_SAMPLE_S)
            self._sample(await self._text())

    async def watched(self, wall_s: float) -> Watched:
        """Raises ServerError if the server has /metrics and does not answer."""
        cpu = self._cpu()
        after = await fetch(self._session, self._url)
        self._sample(after)
        return Watched(
            wall_s=wall_s,
            before=None if self._before is None else Scrape(self._before),
            after=None if after is None else Scrape(after),
            kv_blocks_peak=self._kv_peak,
            rss_peak_bytes=self._rss_peak,
            cpu_before=self._cpu_before,
            cpu_after=cpu,
        )

    def _cpu(self) -> Cpu | None:
        usage, machine_s = self._server.usage(), machine_cpu_s()
        if usage is None or machine_s is None:
            return None
        return Cpu(usage.cpu_s, time.process_time(), machine_s)

    async def _text(self) -> str | None:
        """None also if it does not answer now: one sample less is no reason to end a run."""
        try:
            return await fetch(self._session, self._url)
        except LoadgenError:
            return None

    def _sample(self, text: str | None) -> None:
        usage = self._server.usage()
        if usage is not None:
            self._rss_peak = max(self._rss_peak or 0, usage.rss_bytes)
        used = None if text is None else gauge(text, "stageline_kv_blocks_used")
        if used is not None:
            self._kv_peak = max(self._kv_peak or 0.0, used)


def _line(runs: list[Repeat]) -> str:
    run = runs[-1]
    ttft = f"{run.measures['TTFT p99 ms']:.0f} ms" if "TTFT p99 ms" in run.measures else "-"
    line = (
        f"  run {len(runs)}: {run.measures['output tok/s']:.1f} output tok/s, TTFT p99 {ttft}, "
        f"{run.measures['failed']:.0f} failed, {run.wall_s:.1f} s"
    )
    return line + (f"; CLIENT-BOUND: {'; '.join(run.client_bound)}" if run.client_bound else "")
