"""The replay command: trace -> workload -> prompts -> open loop -> report."""

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from loadgen import calibrate
from loadgen.behaviours import Behaviours
from loadgen.clients import Client, Target, connect
from loadgen.clock import RunClock, sample_loop_lag
from loadgen.content import Contents
from loadgen.errors import UsageError
from loadgen.openloop import OpenLoop
from loadgen.prefixes import Prefixes, TokenRange
from loadgen.progress import Progress
from loadgen.prompts import Text, load_text
from loadgen.record import Record
from loadgen.report import print_report, write_json
from loadgen.slo import Slo
from loadgen.summary import Summary, summarise
from loadgen.traces import ReadOptions, Trace, load
from loadgen.workload import Limits, Pacing, Workload, plan

FINISHED, SOME_FAILED, INTERRUPTED = 0, 1, 130

Watch = Callable[[OpenLoop, RunClock], Coroutine[Any, Any, None]]
"""What looks at a run while it goes on, and may stop it."""


class Options(msgspec.Struct, frozen=True):
    """A replay, as the command line asks for it."""

    trace: Path
    target: Target
    limits: Limits
    format: str | None = None
    reading: ReadOptions = ReadOptions()
    tokens: TokenRange = TokenRange()
    slo: Slo | None = None
    prompts: Path | None = None
    tokens_per_word: float | None = None
    pacing: Pacing = Pacing()
    behaviours: Behaviours = Behaviours()
    seed: int = 0
    """Of the prompts and the behaviours; `pacing` and `reading` have their own."""
    timeout_s: float = 600.0
    json: Path | None = None


class Run(msgspec.Struct, frozen=True):
    """A replay that has ended."""

    options: Options
    model: str | None
    """As the server names it."""
    trace: Trace
    workload: Workload
    records: list[Record]
    """Of every request that was sent, in order of sending."""
    lags_s: list[float]
    """Samples of the generator's loop lag."""
    summary: Summary
    is_stopped: bool
    """By Ctrl-C, before everything was sent and answered."""


async def replay(options: Options, console: Console) -> int:
    """Measures, prints, writes, and returns the exit code.

    Raises:
        LoadgenError: the trace, the text, the server or a file cannot be used.
    """
    if options.json is not None and not options.json.parent.is_dir():
        raise UsageError(f"--json {options.json}: there is no folder {options.json.parent}")
    run = await measure(options, console)
    print_report(console, run.summary, run.trace, run.workload)
    if options.json is not None:
        config = _config(options, run.model)
        write_json(options.json, config, run.summary, run.trace, run.workload, run.records)
    if run.is_stopped:
        return INTERRUPTED
    return SOME_FAILED if run.summary.failures else FINISHED


async def measure(options: Options, console: Console, watch: Watch | None = None) -> Run:
    """Sends the trace's requests once; what is printed is the progress.

    Args:
        watch: runs beside the requests, from the first to the end of the last; then it is cancelled.

    Raises:
        LoadgenError: the trace, the text or the server cannot be used.
    """
    trace = load(options.trace, options.format, options.reading)
    workload = plan(trace, options.limits, options.pacing)
    text = load_text(options.prompts)
    clock, lags_s = RunClock(), list[float]()
    async with connect(options.target, clock) as (client, model):
        console.print(
            f"{options.trace.name} ({trace.format}) -> {options.target.url} ({options.target.protocol}), "
            f"model {model}, {len(workload.jobs)} requests; {workload.arrivals}",
            highlight=False,
            soft_wrap=True,
        )
        contents = await _contents(options, text, workload, client, console)
        loop = OpenLoop(
            workload, client, contents, clock, options.timeout_s, options.behaviours, options.seed
        )
        await _watched(loop, clock, lags_s, console, watch)
    summary = summarise(loop.records, len(workload.jobs), workload.mean_gap_s, lags_s, options.slo)
    return Run(options, model, trace, workload, loop.records, lags_s, summary, loop.is_stopped)


async def _contents(
    options: Options, text: Text, workload: Workload, client: Client, console: Console
) -> Contents:
    """The text is measured only if a job needs it."""
    prefixes = Prefixes(options.seed, options.tokens)
    if all(job.content is not None for job in workload.jobs):
        return Contents(None, prefixes)
    if options.tokens_per_word is not None:
        return Contents(calibrate.by_rate(text, options.tokens_per_word, options.seed), prefixes)
    console.print("measuring the prompts' text: up to 26 requests of one output token")
    return Contents(await calibrate.calibrated(text, client, options.seed, options.timeout_s), prefixes)


async def _watched(
    run: OpenLoop, clock: RunClock, lags_s: list[float], console: Console, watch: Watch | None
) -> None:
    """Runs `run` with its progress shown and its loop lag sampled; Ctrl-C stops it."""
    loop = asyncio.get_running_loop()
    gc.collect()
    gc.freeze()  # the trace and its jobs: scanning them would be a hole in every time stamp
    loop.add_signal_handler(signal.SIGINT, run.stop)
    try:
        async with asyncio.TaskGroup() as group:
            watchers = [
                group.create_task(sample_loop_lag(lags_s)),
                group.create_task(Progress(run, clock, console).show()),
            ]
            if watch is not None:
                watchers.append(group.create_task(watch(run, clock)))
            await run.run()
            for watcher in watchers:
                watcher.cancel()
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        gc.unfreeze()


def _config(options: Options, model: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(options, enc_hook=str)
    return fields | {"served_model": model}
