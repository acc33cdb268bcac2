"""The replay command: trace -> workload -> prompts -> open loop -> report."""

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from loadgen import calibrate
from loadgen.behaviours import Behaviours
from loadgen.clients import Client, Target, connect
from loadgen.clock import RunClock
from loadgen.content import Contents
from loadgen.digest import Digest, digest
from loadgen.joined import says_timings
from loadgen.machine import this_machine
from loadgen.observed import Observed, Watch, observe
from loadgen.openloop import OpenLoop
from loadgen.outputs import check_places, write_all
from loadgen.prefixes import Prefixes, TokenRange
from loadgen.prompts import Text, load_text
from loadgen.record import Record
from loadgen.report import print_report
from loadgen.result import VERSION, Result, trace_facts
from loadgen.slo import Slo
from loadgen.summary import Summary, summarise
from loadgen.traces import ReadOptions, Trace, load
from loadgen.verify import Verification, verify
from loadgen.workload import Limits, Pacing, Workload, plan

FINISHED, SOME_FAILED, INTERRUPTED = 0, 1, 130


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
    verify: bool = False
    """Every answer is compared with the one that its prompt gets alone."""
    json: Path | None = None
    out: Path | None = None
    """A folder for result.json and report.html."""


class Run(msgspec.Struct, frozen=True):
    """A replay that has ended."""

    options: Options
    model: str | None
    """As the server names it."""
    trace: Trace
    workload: Workload
    records: list[Record]
    """Of every request that was sent, in order of sending."""
    seen: Observed
    summary: Summary
    digest: Digest
    verification: Verification | None
    is_stopped: bool
    """By Ctrl-C, before everything was sent and answered."""

    @property
    def lags_s(self) -> list[float]:
        """Samples of the generator's loop lag, every 10 ms."""
        return self.seen.lags_s


async def replay(options: Options, console: Console) -> int:
    """Measures, prints, writes, and returns the exit code.

    Raises:
        LoadgenError: the trace, the text, the server or a file cannot be used.
    """
    check_places(options.json, options.out)
    run = await measure(options, console)
    result = result_of(run)
    print_report(console, result)
    write_all(result, options.json, options.out)
    if run.is_stopped:
        return INTERRUPTED
    is_wrong = run.verification is not None and not run.verification.is_clean
    return SOME_FAILED if run.summary.failures or is_wrong else FINISHED


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
    is_ours = await says_timings(options.target.url)
    target = msgspec.structs.replace(options.target, asks_timings=is_ours)
    clock = RunClock()
    async with connect(target, clock) as (client, model):
        _announce(console, options, trace, workload, model)
        contents = await _contents(options, text, workload, client, console)
        loop = _loop(options, workload, client, contents, clock)
        seen = await observe(loop, clock, console, target.url if is_ours else None, watch)
        verification = None
        if options.verify and not loop.is_stopped:
            verification = await _verified(
                verify(loop.records, workload.jobs, contents, client, options.timeout_s, console)
            )
    return Run(
        options=options,
        model=model,
        trace=trace,
        workload=workload,
        records=loop.records,
        seen=seen,
        summary=summarise(
            loop.records, len(workload.jobs), workload.mean_gap_s, seen.lags_s, options.slo, seen.cpu_s
        ),
        digest=_digest(options, workload, contents),
        verification=verification,
        is_stopped=loop.is_stopped or (options.verify and verification is None),
    )


def _announce(
    console: Console, options: Options, trace: Trace, workload: Workload, model: str | None
) -> None:
    console.print(
        f"{options.trace.name} ({trace.format}) -> {options.target.url} ({options.target.protocol}), "
        f"model {model}, {len(workload.jobs)} requests; {workload.arrivals}",
        highlight=False,
        soft_wrap=True,
    )


def _loop(
    options: Options, workload: Workload, client: Client, contents: Contents, clock: RunClock
) -> OpenLoop:
    return OpenLoop(
        workload,
        client,
        contents,
        clock,
        options.timeout_s,
        options.behaviours,
        options.seed,
        keeps_texts=options.verify,
    )


def _digest(options: Options, workload: Workload, contents: Contents) -> Digest:
    clients = (options.seed, options.behaviours, workload.num_users)
    return digest(workload.jobs, contents, (options.seed, options.tokens), clients)


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


async def _verified(verifying: Coroutine[Any, Any, Verification]) -> Verification | None:
    """None if Ctrl-C ended it: the run itself is still reported."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(verifying)
            loop.add_signal_handler(signal.SIGINT, task.cancel)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return None if task.cancelled() else task.result()


def result_of(run: Run) -> Result:
    """What is written of a run."""
    config: dict[str, Any] = msgspec.to_builtins(run.options, enc_hook=str)
    return Result(
        version=VERSION,
        started_at=run.seen.started_at,
        config=config | {"served_model": run.model},
        machine=this_machine(),
        trace=trace_facts(run.trace, run.workload),
        workload=run.digest,
        summary=run.summary,
        verification=run.verification,
        queues=run.seen.queues,
        requests=sorted(run.records, key=lambda record: record.index),
    )
