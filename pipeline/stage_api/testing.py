"""What a test of a stage is made of: sample messages, fakes, and the stage alone between them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar, cast

import msgspec

from pipeline import assemble
from pipeline import config as configuration
from pipeline.bench import samples
from pipeline.bench.compare.answers import compare_answers
from pipeline.bench.compare.input import of_samples
from pipeline.bench.compare.side import BUILT_IN, Side, variant
from pipeline.bench.samples import Load
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.messages import (
    GenerateRequest,
    StepHandle,
    StepPlan,
    TextBatch,
    TokenBatch,
    TokenizedRequest,
)
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import Stage, StageContext
from pipeline.runtime.testing import Collect, FakeHandle, FakeRunner, ManualClock, Script
from pipeline.telemetry import Telemetry

__all__ = [
    "SAMPLED",
    "Collect",
    "FakeHandle",
    "FakeRunner",
    "ManualClock",
    "Script",
    "byte_card",
    "differences",
    "run_alone",
    "sample_messages",
]

M = TypeVar("M")
AnyStage = Stage[Any, Any]

_PER_REQUEST: dict[type, Callable[[Load, int, int], object]] = {
    GenerateRequest: samples.generate_request,
    TokenizedRequest: samples.tokenized_request,
}
_PER_STEP: dict[type, Callable[[Load, int, list[samples.Row], int], object]] = {
    StepPlan: samples.step_plan,
    StepHandle: samples.step_handle,
    TokenBatch: samples.token_batch,
    TextBatch: samples.text_batch,
}
SAMPLED = (*_PER_REQUEST, *_PER_STEP)
"""The types that `sample_messages` knows: those that data links carry."""


def sample_messages(kind: type[M], count: int, num_rows: int = 4, num_tokens: int = 16) -> list[M]:
    """Messages as `stageline bench` sends them, of real text, as the byte tokenizer of `byte_card` cuts it.

    Args:
        num_rows: of each step. Sequences of up to `num_tokens` end, and others take their place.

    Raises KeyError for a type that is not in SAMPLED.
    """
    load = msgspec.structs.replace(Load.of(byte_card(), num_rows), num_tokens=num_tokens)
    return list(islice(_samples(kind, load), count))


def _samples(kind: Any, load: Load) -> Iterator[Any]:
    if kind in _PER_REQUEST:
        yield from (_PER_REQUEST[kind](load, number, 0) for number in range(1 << 30))
    for step_id, rows in enumerate(samples.steps(load), 1):
        yield _PER_STEP[kind](load, step_id, rows, 0)


async def run_alone(
    make: type[AnyStage],
    options: msgspec.Struct,
    messages: Iterable[object],
    *,
    resources: Mapping[type, object] | None = None,
    swap_after: int | None = None,
) -> dict[type, list[Any]]:
    """Run a stage over these messages, one a batch: what it gives, by type.

    Its clock stands still, so two stages that give the same give equal messages.

    Args:
        resources: beside the byte tokenizer's ModelCard and a Telemetry, or in the place of them.
        swap_after: after so many messages another of the same class takes its place, as in a swap.
    """
    sinks: dict[type, Collect[Any]] = {kind: Collect() for kind in make.gives}
    given: dict[type, object] = {ModelCard: byte_card(), Telemetry: Telemetry(), **(resources or {})}
    ctx = StageContext("alone", Inbox[Any](1), sinks, given, clock=ManualClock())
    script = list(messages)
    stage = make(ctx, options)
    try:
        await stage.start()
        if swap_after is not None:
            await _play(stage, script[:swap_after], is_all=False)
            stage = await _succeeded(stage, make(replace(ctx, is_successor=True), options))
            script = script[swap_after:]
        await _play(stage, script, is_all=True)
    finally:
        await stage.stop()
    return {kind: sink.messages for kind, sink in sinks.items()}


def differences(stage: str, use: str, **options: object) -> list[str]:
    """Where the class of an import path answers otherwise than the built-in stage; empty: nowhere.

    Both are fed the same, with a device that costs nothing; the built-in stage's `equivalence` says what must
    be alike. Raises ConfigError: the class does not fit there, or the options do not fit it.
    """
    configured = assemble.check(configuration.loads(f"[stages.{stage}]", "the default configuration"))
    fed = of_samples(stage, configured.graph, Load.of(byte_card(), 8), num_requests=16, num_tokens=24)
    runner = RunnerFactory(lambda: cast(Any, FakeRunner()))
    builtin = variant(configured, stage, BUILT_IN, {}, "the built-in stage")
    a = Side("a", stage, builtin, byte_card(), runner)
    b = Side("b", stage, variant(configured, stage, use, options, use), byte_card(), runner)
    answers = asyncio.run(compare_answers(a, b, fed))
    return [*map(str, answers.differences), *filter(None, [answers.failure])]


async def _play(stage: AnyStage, messages: Iterable[object], *, is_all: bool) -> None:
    """Let the stage handle these, and drain after the last of all. Raises what the stage raises."""
    inbox = stage.ctx.inbox
    inbox.resume()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await Script(messages).play(inbox)
            if is_all:
                inbox.close()
            else:
                inbox.pause()
    except ExceptionGroup as fault:
        raise fault.exceptions[0] from None


async def _succeeded(old: AnyStage, new: AnyStage) -> AnyStage:
    """The new one, in the place of the old and with its state."""
    assert old.State is not None, f"{type(old).__name__}.State is None: it cannot be swapped"
    await new.start()
    state = old.export_state()
    old.import_state(old.State())
    new.import_state(state)
    await old.stop()
    return new
