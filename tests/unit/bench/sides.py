"""Sides of comparisons: each stage as the tests configure it, with a device that takes a known time."""

from time import perf_counter_ns
from typing import Any, cast

from pipeline import assemble
from pipeline.assemble import StageClass
from pipeline.bench.compare.side import BUILT_IN, Side, variant
from pipeline.checkpoint.card import ModelCard
from pipeline.config import loads
from pipeline.core.import_path import resolve
from pipeline.messages import DeviceReady, StepPlan
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import FakeRunner

CONFIG = loads(
    """
    [stages.tokenize]
    workers = 1
    options.max_batch = 1
    [stages.filter.options]
    rules = [{ terms = ["clocks"], action = "stop" }, { terms = ["owner"] }]
    """,
    "the test",
)
CONFIGURED = assemble.check(CONFIG)
CAPACITY = DeviceReady(num_blocks=4096, block_size=16, max_num_seqs=32, max_num_batched_tokens=4096)
STAGES = ("tokenize", "schedule", "execute", "sample", "detokenize", "filter", "stream")
STEP_US = 200.0


def built_in(stage: str) -> StageClass:
    use = next(node.use for node in CONFIG.graph.nodes if node.name == stage)
    return cast(StageClass, resolve(stage, use))


def spin(_: StepPlan, us: float = STEP_US) -> None:
    until_ns = perf_counter_ns() + us * 1e3
    while perf_counter_ns() < until_ns:
        pass


def runner(us: float = STEP_US) -> RunnerFactory:
    return RunnerFactory(lambda: cast(Any, FakeRunner(CAPACITY, lambda plan: spin(plan, us))))


def side(name: str, stage: str, card: ModelCard, use: str = BUILT_IN) -> Side:
    return Side(name, stage, variant(CONFIGURED, stage, use, {}, f"--{name}"), card, runner())
