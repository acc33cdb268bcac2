"""A run and all that is looked at beside it: progress, the generator's own health, the server's queues."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console

from loadgen.clock import RunClock, sample_loop_lag
from loadgen.openloop import OpenLoop
from loadgen.progress import Progress
from loadgen.queues import QueueSample, sample_queues
from loadgen.steady import steady

Watch = Callable[[OpenLoop, RunClock], Coroutine[Any, Any, None]]
"""What looks at a run while it goes on, and may stop it."""


class Observed(msgspec.Struct):
    """What there was to see."""

    started_at: str
    """ISO 8601, UTC."""
    cpu_s: float = 0.0
    """CPU time of the generator."""
    lags_s: list[float] = []
    """Samples of the generator's loop lag."""
    queues: list[QueueSample] = []
    """Of this project's server; empty with another."""


async def observe(
    run: OpenLoop, clock: RunClock, console: Console, metrics_url: str | None, watch: Watch | None
) -> Observed:
    """Runs `run` to its end, its progress shown on `console`; Ctrl-C stops it.

    Args:
        metrics_url: of a server whose queues can be sampled.
        watch: runs beside the requests, from the first to the end of the last; then it is cancelled.
    """
    seen = Observed(datetime.now(UTC).isoformat(timespec="seconds"))
    watchers = [sample_loop_lag(seen.lags_s), Progress(run, clock, console).show()]
    if metrics_url is not None:
        watchers.append(sample_queues(metrics_url, clock, seen.queues))
    if watch is not None:
        watchers.append(watch(run, clock))
    began_s = time.process_time()
    await _beside(run, watchers)
    seen.cpu_s = time.process_time() - began_s
    return seen


async def _beside(run: OpenLoop, watchers: list[Coroutine[Any, Any, None]]) -> None:
    """Runs `run`, and `watchers` until it ends."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, run.stop)
    try:
        with steady():
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(watcher) for watcher in watchers]
                await run.run()
                for task in tasks:
                    task.cancel()
    finally:
        loop.remove_signal_handler(signal.SIGINT)
