"""Counts and faults; how long it takes is for `stageline bench` to say."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from pipeline import assemble
from pipeline.bench.encoding import by_stage, one_by_one
from pipeline.bench.feeds import Requests, feed_for
from pipeline.bench.measure import bench_stage
from pipeline.bench.report import stage_report
from pipeline.bench.result import StageResult
from pipeline.bench.samples import Load
from pipeline.bench.stand import build_stand
from pipeline.checkpoint.card import ModelCard
from pipeline.config import loads
from pipeline.errors import StageCrashed, StagelineError
from pipeline.messages import DeviceReady, TextBatch, TokenBatch
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.stage import NoOptions, Stage
from pipeline.runtime.testing import FakeRunner

ROWS, STEPS = 6, 300
CAPACITY = DeviceReady(num_blocks=256, block_size=16, max_num_seqs=8, max_num_batched_tokens=128)


class Shout(Stage[TokenBatch, NoOptions]):
    """A lab's own detokenizer: no code of the bench knows it."""

    takes = (TokenBatch,)
    gives = (TextBatch,)

    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        for step in batch:
            shouts = ["A"] * len(step.request_ids)
            ones = [1] * len(step.request_ids)
            await self.ctx.outlet(TextBatch).send(
                TextBatch(
                    step.step_id,
                    step.request_ids,
                    shouts,
                    ones,
                    step.finish_reasons,
                    step.started,
                    step.times,
                    step.elapsed_ns,
                    step.sent_ns,
                    step.sent_ns,
                    step.sent_ns,
                )
            )


class Broken(Shout):
    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        raise ZeroDivisionError("no such token")


def bench(card: ModelCard, stage: str, toml: str = "", rows: int = ROWS) -> tuple[StageResult, Any, Load]:
    load = Load.of(card, rows)
    feed = feed_for(stage, load)
    runner = RunnerFactory(lambda: cast(Any, FakeRunner(CAPACITY)))

    async def main() -> StageResult:
        blueprint = assemble.check(loads(toml, "the test"))
        result = await bench_stage(build_stand(blueprint, stage, card, runner), feed, stage, STEPS)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return asyncio.run(main()), feed, load


@pytest.mark.parametrize("stage", ["sample", "detokenize"])
def test_one_message_a_step_and_at_most_one_wake_up_a_message(stage: str, fake_card: ModelCard) -> None:
    result, _, _ = bench(fake_card, stage)
    assert result.messages == STEPS
    assert result.rows == STEPS * ROWS
    assert 0 < result.wakeups <= STEPS
    assert 0 < result.p50_us <= result.p99_us


@pytest.mark.parametrize("stage", ["schedule", "stream"])
def test_requests_come_beside_the_steps(stage: str, fake_card: ModelCard) -> None:
    """One for each sequence that begins; schedule has a step or two without the row of one that ended."""
    result, _, _ = bench(fake_card, stage)
    assert STEPS < result.messages <= STEPS + 3 * ROWS
    assert 0.9 * STEPS * ROWS <= result.rows <= STEPS * ROWS


def test_execute_is_measured_by_its_device(fake_card: ModelCard) -> None:
    """Its own work is to pass plans on. A row waits a step or two where a sequence begins."""
    result, _, _ = bench(fake_card, "execute")
    assert result.messages == STEPS
    assert 0.9 * STEPS * ROWS <= result.rows <= STEPS * ROWS
    assert result.busy_s > 0


def test_every_request_is_answered(fake_card: ModelCard) -> None:
    result, feed, load = bench(fake_card, "tokenize")
    assert isinstance(feed, Requests)
    assert result.messages == result.rows == STEPS
    single = one_by_one(fake_card, load, STEPS)
    batched = by_stage(result, single)
    assert single.tokens_per_s / single.prompts_per_s == pytest.approx(
        batched.tokens_per_s / batched.prompts_per_s
    )
    assert stage_report(result, [single, batched]).renderables


def test_a_stage_of_ones_own_needs_no_code(fake_card: ModelCard) -> None:
    toml = f'[stages.detokenize]\nuse = "{__name__}:Shout"\n'
    result, _, _ = bench(fake_card, "detokenize", toml)
    assert result.use.endswith(":Shout")
    assert result.messages == STEPS


def test_a_stage_that_crashes_says_why(fake_card: ModelCard) -> None:
    toml = f'[stages.detokenize]\nuse = "{__name__}:Broken"\n'
    with pytest.raises(StageCrashed, match="no such token") as raised:
        bench(fake_card, "detokenize", toml)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_sample_that_is_refused_is_an_error(fake_card: ModelCard) -> None:
    with pytest.raises(StageCrashed, match="refused"):
        bench(fake_card, "tokenize", "[stages.tokenize.options]\nmax_prompt_bytes = 200\n")


def test_more_rows_than_the_device_takes(fake_card: ModelCard) -> None:
    with pytest.raises(StageCrashed, match="max_num_seqs"):
        bench(fake_card, "execute", rows=9)


def test_ingress_is_sent_no_messages(fake_card: ModelCard) -> None:
    with pytest.raises(StagelineError, match="sent no messages"):
        feed_for("ingress", Load.of(fake_card, 1))
