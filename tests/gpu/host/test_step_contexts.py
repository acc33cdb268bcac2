"""Sinks, windows and mass of a step's inputs through whole models: the host's against torch's in fp32."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pipeline.gpu.api import LayerKv, Model, StepInputs
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from tests.gpu.driver import TINY, Driver, KeepLogits, random_tensors

PROMPT, CHUNK, SINKS, WINDOW = 150, 64, 3, 40


class Windowed:
    """A model all of whose rows see sinks and a window; adds up what they attend to."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.mass = 0

    def forward(self, inputs: StepInputs, layers: list[LayerKv]) -> Tensor:
        sinks, windows = (torch.full_like(inputs.context_lens, n) for n in (SINKS, WINDOW))
        mass = torch.zeros(inputs.block_tables.shape, dtype=torch.int64)
        logits = self._model.forward(replace(inputs, sinks=sinks, windows=windows, mass=mass), layers)
        self.mass += int(mass.sum())
        return logits


def run(**options: object) -> tuple[Tensor, int]:
    """Logits [1, V] after a prompt in chunks, and the mass of all its steps."""
    keep = KeepLogits()
    runner_options = RunnerOptions(device="cpu", num_blocks=20, max_num_seqs=2, **options)  # type: ignore[arg-type]
    driver = Driver(build_runner(TINY, random_tensors(TINY), runner_options, lambda: keep))
    model = Windowed(driver.runner._model)
    driver.runner._model = model
    sequence = driver.add(i % TINY.vocab_size for i in range(PROMPT))
    while not sequence.output:
        driver.step(driver.next_rows([sequence], CHUNK))
    return keep.last.float(), model.mass


@pytest.mark.parametrize(("kv_dtype", "bound"), [("bf16", 0.015), ("int8", 0.02)])
def test_a_step_sees_what_its_inputs_say(kv_dtype: str, bound: float) -> None:
    logits, mass = run(backend="host", weights="bf16", kv_dtype=kv_dtype)
    expected, _ = run(dtype="float32")
    assert (logits - expected).norm() < bound * expected.norm()
    assert mass / 2**32 == pytest.approx(PROMPT * TINY.num_layers * TINY.num_heads, rel=1e-6)


def test_mass_costs_no_bit() -> None:
    """And windows as wide as the context hide nothing."""
    keep = KeepLogits()
    options = RunnerOptions(device="cpu", num_blocks=20, max_num_seqs=2, backend="host", weights="bf16")
    driver = Driver(build_runner(TINY, random_tensors(TINY), options, lambda: keep))
    plain = driver.add(range(30))
    driver.step([(plain, 30)])
    before = keep.last
    driver.runner._model = Windowed(driver.runner._model)
    windowed = driver.add(range(30))
    driver.step([(windowed, 30)])
    assert torch.equal(keep.last, before)
