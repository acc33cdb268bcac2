"""The measuring runs the steps it says."""

import pytest

from pipeline.gpu.measure import one_stream, prompt, steps
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import Runner, build_runner
from pipeline.messages import StepPlan
from tests.gpu.driver import TINY, random_tensors


def test_the_steps_are_those_of_the_docstring(monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunnerOptions(device="cpu", num_blocks=1024, max_num_seqs=16, weights="int8")
    runner = build_runner(TINY, random_tensors(TINY), options)
    plans: list[StepPlan] = []
    launch = Runner.launch
    monkeypatch.setattr(Runner, "launch", lambda self, plan: plans.append(plan) or launch(self, plan))
    times = [*one_stream(runner), *steps(runner, 16, 256, 1), *prompt(runner)]
    assert len(times) == 128 + 10 + 2
    assert min(times) > 0
    shapes = [(len(p.slots), p.num_computed[0], p.num_tokens[0]) for p in plans]
    assert shapes[:3] == [(1, 0, 32), (1, 32, 1), (1, 33, 1)]
    assert shapes[-3:] == [(16, 255, 1), (1, 0, 512), (1, 512, 512)]
