"""Measure: what messages cost a stage on its stand, and what its memory does, in passes of their own."""

import tracemalloc
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from statistics import median
from sys import getallocatedblocks
from typing import Any, NamedTuple

from pipeline.bench.result import Allocations, Queue, StageResult
from pipeline.bench.stand import WARM_UP, Feed, Handle, Stand, running
from pipeline.errors import ConfigError, StageCrashed, StagelineError
from pipeline.runtime.inbox import Taken
from pipeline.runtime.supervisor import AnyStage

NUM_PARTS = 36
"""Of the time, in which the depth of the queue is told."""


class Meter:
    """Sees every batch that the stage takes, from now on."""

    def __init__(self, stand: Stand) -> None:
        self.num_batches = 0
        self._sent_ns: list[int] = []
        self._taken_ns: list[int] = []
        stand.inbox.taps = (*stand.inbox.taps, self._take)

    def queue(self, since_ns: int, until_ns: int) -> Queue | None:
        """Of the messages sent in this time; None: there are none."""
        spans = [
            (sent_ns, taken_ns)
            for sent_ns, taken_ns in zip(self._sent_ns, self._taken_ns, strict=True)
            if sent_ns >= since_ns
        ]
        if not spans:
            return None
        waits_us = [(taken_ns - sent_ns) / 1e3 for sent_ns, taken_ns in spans]
        return Queue(
            quantile(waits_us, 0.5),
            quantile(waits_us, 0.99),
            sum(waits_us) * 1e3 / max(until_ns - since_ns, 1),
            _peaks(spans, since_ns, until_ns),
        )

    def _take(self, taken: Taken[Any]) -> None:
        self.num_batches += 1
        self._sent_ns += taken.sent_ns
        self._taken_ns += [taken.taken_ns] * len(taken.sent_ns)


def _peaks(spans: Sequence[tuple[int, int]], since_ns: int, until_ns: int) -> list[int]:
    """The most that waited at once in each of NUM_PARTS equal parts."""
    changes = sorted([(sent, 1) for sent, _ in spans] + [(taken, -1) for _, taken in spans])
    ends = [since_ns + (until_ns - since_ns) * part // NUM_PARTS for part in range(1, NUM_PARTS + 1)]
    peaks = [0] * NUM_PARTS
    depth = before = 0
    for at_ns, change in changes:
        part = min(bisect_right(ends, at_ns), NUM_PARTS - 1)
        for crossed in range(before + 1, part + 1):
            peaks[crossed] = depth
        depth += change
        peaks[part] = max(peaks[part], depth)
        before = part
    return peaks


async def bench_stage(
    stand: Stand,
    feed: Feed,
    name: str,
    num_messages: int,
    *,
    num_warm: int | None = None,
    rate: str = "max",
    watching: AbstractContextManager[object] | None = None,
    among: AbstractAsyncContextManager[None] | None = None,
) -> StageResult:
    """Warm up, then measure so many messages. Raises StageCrashed, ConfigError.

    Args:
        num_warm: messages to warm up with; None: a tenth as many, and WARM_UP at least.
        watching: entered for the time that is measured, and no longer.
        among: entered when the stage runs, before it is sent anything, and left when all is measured.
    """
    meter = Meter(stand)
    try:
        async with running(stand, feed), among or nullcontext():
            await feed.send(stand, max(num_messages // 10, WARM_UP) if num_warm is None else num_warm)
            before = _Mark.of(stand, feed, meter)
            with watching or nullcontext():
                await feed.send(stand, num_messages)
                after = _Mark.of(stand, feed, meter)
    except BaseExceptionGroup as group:
        raise _fault(name, group) from _first(group)
    services = feed.services_us(stand, before.at_ns)
    if not services:
        raise StagelineError(f"{name} was sent nothing that could be measured")
    queue = None if rate == "max" else meter.queue(before.at_ns, after.at_ns)
    handled = stand.handled_us(before.at_ns)
    return StageResult(
        stage=name,
        use=stand.use,
        workers=len(stand.stages),
        rate=rate,
        messages=len(services),
        p50_us=quantile(services, 0.5),
        p99_us=quantile(services, 0.99),
        busy_s=sum(services) / 1e6,
        handled_s=sum(handled) / 1e6,
        handled_p50_us=quantile(handled, 0.5) if handled else 0.0,
        rows_left_out=feed.num_left_out,
        queue=queue,
        **after.since(before),
    )


class _Mark(NamedTuple):
    """How things stand at one moment."""

    at_ns: int
    num_rows: int
    recorded_ns: int
    num_batches: int
    wakeups: int

    @classmethod
    def of(cls, stand: Stand, feed: Feed, meter: Meter) -> "_Mark":
        wakeups = stand.inbox.stats().wakeups
        return cls(stand.clock(), feed.num_rows, feed.recorded_ns, meter.num_batches, wakeups)

    def since(self, before: "_Mark") -> dict[str, Any]:
        """What has come between the two, as fields of StageResult."""
        return {
            "seconds": (self.at_ns - before.at_ns) / 1e9,
            "rows": self.num_rows - before.num_rows,
            "recorded_s": (self.recorded_ns - before.recorded_ns) / 1e9,
            "batches": self.num_batches - before.num_batches,
            "wakeups": self.wakeups - before.wakeups,
        }


async def count_allocations(stand: Stand, feed: Feed, name: str, num_messages: int) -> Allocations:
    """Of each handle() of so many messages, after WARM_UP that are not counted. Raises StageCrashed."""
    calls: list[tuple[int, int, int, int]] = []
    try:
        tracemalloc.start()
        async with running(stand, feed, lambda stage: _counted(stage, calls)):
            await feed.send(stand, WARM_UP)
            calls.clear()
            await feed.send(stand, num_messages)
            counted = list(calls)
    except BaseExceptionGroup as group:
        raise _fault(name, group) from _first(group)
    finally:
        tracemalloc.stop()
    if not counted:
        raise StagelineError(f"{name} was sent nothing whose memory could be counted")
    peaks, kept, blocks, messages = zip(*counted, strict=True)
    return Allocations(len(counted), median(peaks), median(kept), median(blocks), median(messages))


def _counted(stage: AnyStage, calls: list[tuple[int, int, int, int]]) -> Handle:
    """Its handle(), whose memory is noted in `calls`."""

    async def handle(batch: Sequence[Any]) -> None:
        tracemalloc.reset_peak()
        begun_bytes, _ = tracemalloc.get_traced_memory()
        begun_blocks = getallocatedblocks()
        await stage.handle(batch)
        num_blocks = getallocatedblocks() - begun_blocks
        kept_bytes, peak_bytes = tracemalloc.get_traced_memory()
        calls.append((peak_bytes - begun_bytes, kept_bytes - begun_bytes, num_blocks, len(batch)))

    return handle


def _fault(name: str, group: BaseExceptionGroup[BaseException]) -> StagelineError:
    error = _first(group)
    if isinstance(error, ConfigError):  # it says all, and is nobody's crash
        return error
    return StageCrashed(f"{name} failed in its bench: {error!r}")


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
