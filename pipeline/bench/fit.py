"""`bench execute --fit`: what a step costs here, as a file for `stageline simulate --device`."""

import asyncio
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import uvloop
from msgspec.structs import replace

from pipeline.bench.alone import Alone
from pipeline.bench.replay import Pace, PlansReplay
from pipeline.bench.replay.plans import capacity_of
from pipeline.bench.samples import Load
from pipeline.bench.stand import WARM_UP, running
from pipeline.bench.step_grid import REPEATS, grid, time_grid
from pipeline.checkpoint.card import ModelCard
from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady
from pipeline.messages.stand_ins import RecordedStep
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.recording import MAGIC, Recording
from pipeline.simulate.fitting import Timed, fit_host, fit_steps, residual, timed_steps, with_total
from pipeline.simulate.host import HostCosts
from pipeline.simulate.measured import VERSION, Measured
from pipeline.simulate.work import work_of
from pipeline.telemetry.evidence import Evidence, Settings

_BLOCK_SIZE = 16
"""A recording of steps does not say how large their blocks are."""
Progress = Callable[[int, int], None]
"""Steps done, and of how many."""


def fit_here(factory: RunnerFactory, card: ModelCard, max_model_len: int, progress: Progress) -> Measured:
    """Run the grid on a runner; tens of seconds on a CPU. Host costs are the defaults."""
    runner = factory.open()
    try:
        ready = runner.capacity
        assert isinstance(ready, DeviceReady), "every runner says what it holds"
        compositions = grid(ready, max_model_len)
        total = len(compositions) * REPEATS
        timed = time_grid(runner, Load.of(card, 1), compositions, lambda done: progress(done, total))
    finally:
        runner.close()
    terms, residuals = fit_steps(timed)
    name = f"{card.name} on {os.cpu_count()} x {platform.processor() or platform.machine()}"
    return Measured(VERSION, name, "bench", ready, max_model_len, terms, HostCosts(), residuals)


def fit_evidence(evidence: Evidence, card: ModelCard, max_model_len: int) -> Measured:
    """From the steps and requests of a running server."""
    steps = timed_steps(evidence)
    terms = with_total(fit_steps(steps)[0], steps)
    name = f"{card.name}, a server on {evidence.settings.device}"
    ready = _ready(evidence.settings)
    return Measured(
        VERSION, name, "evidence", ready, max_model_len, terms, fit_host(evidence), residual(terms, steps)
    )


def fit_recorded(recording: Recording, max_model_len: int) -> Measured | None:
    """From steps that were recorded on their way to sample, as they were timed then; None: there are none."""
    steps = [entry.message for entry in recording.entries if isinstance(entry.message, RecordedStep)]
    if not steps:
        return None
    timed = [Timed(work_of(step.plan), step.end_ns - step.begin_ns) for step in steps]
    ready = replace(capacity_of([step.plan for step in steps]), block_size=_BLOCK_SIZE)
    return _of_recording(recording, timed, ready, max_model_len)


def fit_replayed(alone: Alone, recording: Recording, max_model_len: int) -> Measured:
    """From the steps of a recording of execute, as they run here; the first ones warm the device up."""
    feed = PlansReplay(recording, Pace(None))

    async def run() -> None:
        stand = alone.stand()
        async with running(stand, feed):
            await feed.send(stand, feed.num_messages)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(run())
    assert feed.ready is not None, "its steps have run"
    return _of_recording(recording, feed.timed[WARM_UP:], feed.ready, max_model_len)


def _of_recording(
    recording: Recording, timed: Sequence[Timed], ready: DeviceReady, max_model_len: int
) -> Measured:
    timed = [step for step in timed if step.step_ns > 0]
    terms = with_total(fit_steps(timed)[0], timed)
    name = f"{recording.header.model}, a recording of {recording.header.stage}"
    return Measured(
        VERSION, name, "recording", ready, max_model_len, terms, HostCosts(), residual(terms, timed)
    )


def is_recording(path: Path) -> bool:
    """Raises ConfigError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _ready(settings: Settings) -> DeviceReady:
    return DeviceReady(
        settings.num_blocks, settings.block_size, settings.max_num_seqs, settings.max_num_batched_tokens
    )


def read_evidence(path: Path) -> Evidence:
    """What `stageline doctor --save` wrote. Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Evidence)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no evidence of a server: {error}") from error
