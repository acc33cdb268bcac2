"""Slower copies of each stage are found with the right ratio, and subtly wrong ones are caught."""

import asyncio
import dataclasses
from collections.abc import Callable
from time import perf_counter_ns, sleep
from typing import Any, TypeVar

import pytest

from pipeline.assemble import StageClass
from pipeline.bench.compare.answers import Answers, compare_answers
from pipeline.bench.compare.input import Input, of_samples
from pipeline.bench.compare.rounds import Times, Timing, time_rounds
from pipeline.bench.compare.side import BUILT_IN
from pipeline.bench.feeds import feed_for
from pipeline.bench.samples import Load
from pipeline.checkpoint.card import ModelCard
from pipeline.messages import (
    Cancel,
    FinishReason,
    SampledBatch,
    StepHandle,
    StepPlan,
    TextBatch,
    TokenBatch,
    TokenizedRequest,
)
from pipeline.runtime.bridge import RunnerFactory
from pipeline.stages.execute import Execute
from pipeline.stages.tokenize import Tokenize
from tests.unit.bench import spoiled as by
from tests.unit.bench.sides import CONFIG, STAGES, STEP_US, built_in, runner, side

R = TypeVar("R")
ROWS, TIMED_ROWS = 6, 32
pytestmark = pytest.mark.usefixtures("little_garbage")


def fed(stage: str, card: ModelCard) -> Input:
    graph = CONFIG.graph
    few = of_samples(stage, graph, Load.of(card, ROWS), num_requests=2 * ROWS, num_tokens=48)
    return Input(few.answers, lambda: feed_for(stage, Load.of(card, TIMED_ROWS), graph))


def answers(stage: str, card: ModelCard, use: str = BUILT_IN, patience_s: float = 30.0) -> Answers:
    a, b = side("a", stage, card), side("b", stage, card, use)
    return asyncio.run(compare_answers(a, b, fed(stage, card), patience_s))


def times(stage: str, card: ModelCard, use: str, *, keeps_devices: bool = False) -> Times:
    a, b = side("a", stage, card), side("b", stage, card, use)
    told: list[int] = []
    rounds, num_messages = {"execute": (6, 10), "tokenize": (16, 16)}.get(stage, (12, 40))
    result = asyncio.run(
        time_rounds(
            a,
            b,
            fed(stage, card),
            Timing(
                rounds, num_messages, keeps_devices=keeps_devices, told=lambda done, total: told.append(done)
            ),
        )
    )
    assert told == list(range(1, rounds + 1))
    return result


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_equivalent_to_itself(stage: str, fake_card: ModelCard) -> None:
    result = answers(stage, fake_card)
    assert result.are_alike, result
    assert min(result.messages_a, result.messages_b) >= 2 * ROWS


class SlowDevice(Execute):
    """Steps take twice as long: what an execute stage costs is its device's time."""

    num_opened = 0

    def __init__(self, ctx: Any, options: Any) -> None:
        SlowDevice.num_opened += 1
        slow = {**ctx.resources, RunnerFactory: runner(2 * STEP_US)}
        super().__init__(dataclasses.replace(ctx, resources=slow), options)


class SlowThread(Tokenize):
    """Its thread takes twice as long, and leaves the others alone meanwhile."""

    async def _in_thread(self, work: Callable[[], R]) -> R:
        def slowly() -> R:
            begin_ns = perf_counter_ns()
            done = work()
            sleep((perf_counter_ns() - begin_ns) / 1e9)
            return done

        return await super()._in_thread(slowly)


SLOW: dict[str, StageClass] = {"execute": SlowDevice, "tokenize": SlowThread}


@pytest.mark.parametrize("stage", STAGES)
def test_a_slower_copy_is_found_with_its_ratio(
    stage: str, fake_card: ModelCard, candidate: Callable[[StageClass], str]
) -> None:
    """Noise may hide it, so there are three tries; a ratio that is wrong would be so each time."""
    slow = candidate(SLOW.get(stage) or by.twice_as_slow(built_in(stage)))
    for _ in range(3):
        ratio = times(stage, fake_card, slow).median_ratio
        if ratio.low > 1 and ratio.value == pytest.approx(2, rel=0.25):
            return
    raise AssertionError(ratio)


def test_devices_may_stay_open(fake_card: ModelCard, candidate: Callable[[StageClass], str]) -> None:
    slow = candidate(SlowDevice)
    SlowDevice.num_opened = 0
    assert times("execute", fake_card, slow, keeps_devices=True).median_ratio.value > 1.5
    assert SlowDevice.num_opened == 1
    assert times("execute", fake_card, slow).median_ratio.value > 1.5
    assert SlowDevice.num_opened == 1 + 6


swap_tokens = by.of_a_handle(lambda token_ids: token_ids[::-1])
shift_token = by.of_a_handle(lambda token_ids: [token_ids[0] + 1, *token_ids[1:]])
half_delta = by.of_a_delta(lambda text, count: [(half, count)] if (half := by.halves(text)) else None)
ROW = ("texts", "num_tokens", "finish_reasons")

WRONG: list[tuple[str, str, type | None, by.Spoil, set[str]]] = [
    ("sample", "drops a row", SampledBatch, by.drops_a_row("epochs", "token_ids"), {"SampledBatch"}),
    ("sample", "swaps two", SampledBatch, by.swaps_two("token_ids"), {"SampledBatch"}),
    ("sample", "off by one", SampledBatch, by.off_by_one("token_ids"), {"SampledBatch"}),
    ("sample", "drops a step", SampledBatch, by.drops_it, {"SampledBatch"}),
    ("sample", "says a step twice", SampledBatch, by.doubles_it, {"SampledBatch"}),
    ("detokenize", "drops a row", TextBatch, by.drops_a_row(*ROW), {"text", "output tokens"}),
    ("detokenize", "swaps two", TextBatch, by.swaps_two("texts"), {"text"}),
    ("detokenize", "swaps requests", TextBatch, by.swaps_two("request_ids"), {"text"}),
    ("detokenize", "off by one", TextBatch, by.off_by_one("num_tokens"), {"output tokens"}),
    ("detokenize", "half a character", TextBatch, by.loses_half_a_character, {"text"}),
    ("detokenize", "loses a character", TextBatch, by.loses_a_character, {"text"}),
    ("detokenize", "ends otherwise", TextBatch, by.ends_otherwise, {"text"}),
    ("detokenize", "forgets a Cancel", Cancel, by.drops_it, {"Cancel"}),
    ("detokenize", "says a step twice", TextBatch, by.doubles_it, {"text", "output tokens"}),
    ("filter", "drops a row", TextBatch, by.drops_a_row(*ROW), {"text", "output tokens"}),
    ("filter", "swaps two", TextBatch, by.swaps_two("texts"), {"text"}),
    ("filter", "half a character", TextBatch, by.loses_half_a_character, {"text"}),
    ("filter", "ends otherwise", TextBatch, by.ends_otherwise, {"text"}),
    ("filter", "forgets a Cancel", Cancel, by.drops_it, {"Cancel"}),
    ("tokenize", "drops a request", TokenizedRequest, by.drops_it, {"TokenizedRequest"}),
    ("tokenize", "off by one", TokenizedRequest, by.off_by_one("token_ids"), {"TokenizedRequest.token_ids"}),
    ("tokenize", "says one twice", TokenizedRequest, by.doubles_it, {"TokenizedRequest"}),
    (
        "schedule",
        "drops a row",
        TokenBatch,
        by.drops_a_row("token_ids", "finish_reasons"),
        {"token ids"},
    ),
    ("schedule", "swaps two", TokenBatch, by.swaps_two("token_ids"), {"token ids"}),
    ("schedule", "off by one", TokenBatch, by.off_by_one("token_ids"), {"token ids"}),
    ("schedule", "ends otherwise", TokenBatch, by.ends_otherwise, {"token ids"}),
    ("execute", "swaps two", StepHandle, swap_tokens, {"token ids"}),
    ("execute", "off by one", StepHandle, shift_token, {"token ids"}),
    ("stream", "drops a delta", None, by.of_a_delta(lambda text, count: []), {"text", "output tokens"}),
    ("stream", "half a character", None, half_delta, {"text"}),
    ("stream", "says one twice", None, by.of_a_delta(lambda *call: [call] * 2), {"text", "output tokens"}),
    (
        "stream",
        "ends otherwise",
        None,
        by.of_a_completion(finish_reason=FinishReason.STOP),
        {"text", "completion.finish_reason"},
    ),
    (
        "stream",
        "a wrong count",
        None,
        by.of_a_completion(num_output_tokens=0),
        {"completion.num_output_tokens"},
    ),
]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (by.off_by_one("block_ids"), "step 1 cannot be run: two rows write to one place"),
        (by.off_by_one("num_computed"), "step 1 names a block or slot that is not there"),
        (by.swaps_two("slots"), "step 2 cannot be run: a slot changed hands"),
        (by.drops_it, "step 2 cannot be run: no token on the device"),
    ],
)
def test_a_plan_that_cannot_be_run_is_caught(
    spoil: by.Spoil, why: str, fake_card: ModelCard, candidate: Callable[[StageClass], str]
) -> None:
    """Tokens would not tell: the device of the samples knows requests and places, no blocks."""
    wrong = candidate(by.spoiled(built_in("schedule"), StepPlan, spoil))
    assert why in answers("schedule", fake_card, wrong, 0.5).failure


@pytest.mark.parametrize(
    ("stage", "kind", "spoil", "what"),
    [
        pytest.param(stage, kind, spoil, what, id=f"{stage}: {name}")
        for stage, name, kind, spoil, what in WRONG
    ],
)
def test_a_subtly_wrong_copy_is_caught(
    stage: str,
    kind: type | None,
    spoil: by.Spoil,
    what: set[str],
    fake_card: ModelCard,
    candidate: Callable[[StageClass], str],
) -> None:
    result = answers(stage, fake_card, candidate(by.spoiled(built_in(stage), kind, spoil)), 0.5)
    assert not result.are_alike
    assert result.num_differences >= 1
    assert what & {found.what.partition("[")[0] for found in result.differences} or any(
        found.what.startswith(tuple(what)) for found in result.differences
    ), result
