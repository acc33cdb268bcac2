"""A runner after a launch that raised: sequences that are admitted anew go on as before."""

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import Runner, build_runner
from pipeline.messages import SamplingParams
from tests.gpu.driver import TINY, Driver, random_tensors

OPTIONS = RunnerOptions(device="cpu", num_blocks=40, max_num_seqs=4, block_size=16)
SAMPLINGS = (SamplingParams(temperature=0.0), SamplingParams(temperature=0.9, seed=4, top_k=20))
NUM_STEPS = 24


def fail_within(runner: Runner, calls: set[int]) -> None:
    """The model finds no memory in these of its calls, with its step half done."""
    model: Any = runner._model
    forward, num_calls = model.forward, 0

    def failing(*args: Any) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        logits: torch.Tensor = forward(*args)
        if num_calls in calls:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")
        return logits

    model.forward = failing


@pytest.mark.parametrize("backend", ["host", "torch"])
def test_texts_are_as_without_the_failure(backend: str) -> None:
    def texts(calls: set[int]) -> list[list[int]]:
        options = replace(OPTIONS, backend=backend)
        runner = build_runner(TINY, random_tensors(TINY), options)
        fail_within(runner, calls)
        driver, num_failures = Driver(runner), 0
        sequences = [driver.add(range(3, 20 + k), sampling) for k, sampling in enumerate(SAMPLINGS)]
        while min(len(each.output) for each in sequences) < NUM_STEPS:
            try:
                driver.step(driver.next_rows(sequences, chunk=7))
            except torch.OutOfMemoryError:
                num_failures += 1
                assert runner.renew() == runner.capacity
                for each in sequences:
                    driver.preempt(each)
        assert num_failures == len(calls)
        runner.close()
        return [each.output[:NUM_STEPS] for each in sequences]

    assert texts({2, 9, 10, 25}) == texts(set())
