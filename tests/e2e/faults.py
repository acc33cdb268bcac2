"""Faults to seed, one at a time: slow stages, a device with a price list, and what stops a whole process."""

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from pipeline.messages import DeviceReady, GenerateRequest, SampledBatch, StepHandle, StepPlan, TokenBatch
from pipeline.runtime.testing import FakeRunner
from pipeline.stages.detokenize import Detokenize
from pipeline.stages.sample import Sample
from pipeline.stages.schedule import Schedule
from pipeline.stages.tokenize import BatchEncoder, Encoded, Tokenize
from tests.e2e.world import Server


class Price(NamedTuple):
    """What a step costs, in ms."""

    base: float = 10.0
    prefill: float = 0.0
    """A prompt token."""
    row: float = 0.02
    """A decode row."""
    kv: float = 0.0
    """A token of context."""

    def sleep(self, plan: StepPlan) -> None:
        """On the device thread."""
        decodes = sum(count == 1 for count in plan.num_tokens)
        prefill = len(plan.token_ids) - decodes
        held = sum(plan.num_computed)
        time.sleep((self.base + prefill * self.prefill + decodes * self.row + held * self.kv) / 1e3)


ROOMY = DeviceReady(num_blocks=4096, block_size=16, max_num_seqs=32, max_num_batched_tokens=2048)


def device(price: Price, capacity: DeviceReady = ROOMY) -> Callable[[], FakeRunner]:
    """A runner whose steps take what `price` says."""
    return lambda: FakeRunner(capacity, before_step=price.sleep)


class _TwentyFold(BatchEncoder):
    def encode(self, requests: Sequence[GenerateRequest]) -> list[Encoded | Exception]:
        begin_ns = time.perf_counter_ns()
        outcomes = super().encode(requests)
        time.sleep(19 * (time.perf_counter_ns() - begin_ns) / 1e9)
        return outcomes


class SlowTokenize(Tokenize):
    """Takes 20 times as long to encode, as a tokenizer without a native library does."""

    async def start(self) -> None:
        await super().start()
        self._encoder.__class__ = _TwentyFold


class SlowDetokenize(Detokenize):
    """15 ms of work a step, on the loop."""

    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        for step in batch:
            time.sleep(0.015)  # noqa: ASYNC251 - the fault
            await super().handle([step])


class SlowSample(Sample):
    """40 ms a step until the tokens are there, in a thread."""

    async def handle(self, batch: Sequence[StepHandle]) -> None:
        for step in batch:
            await asyncio.sleep(0.04)
            await super().handle([step])


class SlowSchedule(Schedule):
    """12 ms of work for each result, on the loop, before the next plan can leave."""

    async def handle(self, batch: Sequence[object]) -> None:
        for message in batch:
            if isinstance(message, SampledBatch):
                time.sleep(0.012)  # noqa: ASYNC251 - the fault
        await super().handle(batch)


@asynccontextmanager
async def blocked_loop(_: Server) -> AsyncIterator[None]:
    """A callback that blocks the loop for 250 ms, again and again."""
    loop = asyncio.get_running_loop()

    def block() -> None:
        nonlocal timer
        time.sleep(0.25)
        timer = loop.call_later(0.35, block)

    timer = loop.call_later(0.1, block)
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def gc_storm(_: Server) -> AsyncIterator[None]:
    """A million and a half objects that the collector has to look at, and somebody who makes it look."""
    heap = [[k] for k in range(1_500_000)]

    async def collect() -> None:
        while heap:
            gc.collect()
            await asyncio.sleep(0.2)

    task = asyncio.create_task(collect())
    try:
        yield
    finally:
        heap.clear()
        await task


@asynccontextmanager
async def small_send_buffers(server: Server) -> AsyncIterator[None]:
    """The kernel takes little for a client that does not read: by itself it takes 4 MiB."""
    ingress: Any = server.pipeline.stages["ingress"][0]
    for site in ingress._runner.sites:
        for listening in site._server.sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    yield


@asynccontextmanager
async def no_fault(_: Server) -> AsyncIterator[None]:
    yield
