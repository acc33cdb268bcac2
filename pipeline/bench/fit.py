"""`bench execute --fit`: what a step costs here, as a file for `stageline simulate --device`."""

import os
import platform
from collections.abc import Callable
from pathlib import Path

import msgspec

from pipeline.bench.samples import Load
from pipeline.bench.step_grid import REPEATS, grid, time_grid
from pipeline.checkpoint.card import ModelCard
from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady
from pipeline.runtime.bridge import RunnerFactory
from pipeline.simulate.fitting import fit_host, fit_steps, residual, timed_steps, with_total
from pipeline.simulate.host import HostCosts
from pipeline.simulate.measured import VERSION, Measured
from pipeline.telemetry.evidence import Evidence, Settings

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
