"""A whole server in the test's own loop: real sockets, all stages, and a runner of the test's choice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from pipeline import assemble
from pipeline import config as configuration
from pipeline.checkpoint.card import ModelCard
from pipeline.core.scheduling import Scheduler
from pipeline.runtime.bridge import RunnerFactory


class Server:
    """A running pipeline, seen from inside and outside."""

    def __init__(self, pipeline: assemble.Pipeline, until: asyncio.Event) -> None:
        self.pipeline = pipeline
        self.until = until
        self.base_tasks = 0
        """Tasks of an idle server and of one test."""

    @property
    def url(self) -> str:
        ingress: Any = self.pipeline.stages["ingress"][0]
        return f"http://127.0.0.1:{ingress.port}"

    @property
    def scheduler(self) -> Scheduler:
        stage: Any = self.pipeline.stages["schedule"][0]
        scheduler: Scheduler = stage._scheduler
        return scheduler

    @property
    def num_live(self) -> int:
        """Requests that any stage still remembers."""
        ingress: Any = self.pipeline.stages["ingress"][0]
        detokenize: Any = self.pipeline.stages["detokenize"][0]
        stream: Any = self.pipeline.stages["stream"][0]
        return max(ingress.num_live, detokenize.num_live, stream.num_live, len(self.scheduler._live))

    async def steps(self, count: int) -> None:
        """Wait until so many steps have been planned."""
        while self.scheduler.num_steps < count:  # noqa: ASYNC110 - the scheduler signals nobody
            await asyncio.sleep(0.002)

    def is_at_rest(self) -> bool:
        return not self.num_live and self.scheduler.is_idle and len(asyncio.all_tasks()) <= self.base_tasks

    async def rest(self, within_s: float = 5.0) -> None:
        """Wait until the server is idle and without clients; then nothing of any request may be left."""
        async with asyncio.timeout(within_s):
            while not self.is_at_rest():  # noqa: ASYNC110 - all stages decide: there is no one event
                await asyncio.sleep(0.002)
        pool = self.scheduler.pool
        assert pool.num_free == pool.num_blocks
        assert not self.scheduler._tombstones


@asynccontextmanager
async def serving(
    card: ModelCard,
    make_runner: Callable[[], Any] | None = None,
    toml: str = "",
    runner: RunnerFactory | None = None,
) -> AsyncIterator[Server]:
    """Run the pipeline that `toml` describes, on a free port; drain it at the end.

    Args:
        make_runner: for a thread of this process; or `runner`, for any place; or neither.
    """
    config = configuration.override(configuration.loads(toml, "test.toml"), port=0)
    if "placement" not in config.device:  # a process of its own takes seconds to start
        config = replace(config, device={**config.device, "placement": "thread"})
    runner = RunnerFactory(make_runner) if make_runner else runner
    pipeline = assemble.build(assemble.check(config), card, runner)
    until, ready = asyncio.Event(), asyncio.Event()
    server = Server(pipeline, until)
    running = asyncio.create_task(pipeline.supervisor.run(until, ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        waiting.cancel()
        await running
    await asyncio.sleep(0.01)  # all stages' tasks are there
    server.base_tasks = len(asyncio.all_tasks())
    try:
        yield server
    finally:
        until.set()
        await asyncio.wait_for(asyncio.shield(running), 20)
