"""Whole models on a GGUF's own blocks, against torch in fp32 on the same file."""

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from pipeline.gpu.host.build import Build, find_compiler
from pipeline.gpu.host.formats import Format
from pipeline.gpu.host.layout import plan_layout
from pipeline.gpu.host.library import load_library
from pipeline.gpu.models.llama import LLAMA
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import load_runner
from pipeline.gpu.weights.load import FileWeights
from tests.gpu.driver import Driver, KeepLogits
from tests.gpu.host.test_model import relative_error
from tests.tiny_models import random_tensors, write_gguf

BOUND = 0.06
"""Of the error's norm, as a share of the logits' norm. It is 0.03 to 0.04 here; with int8 weights 0.04."""
SCALE = 0.15
"""Of the random weights: larger ones make attention so sharp that any rounding changes what it picks."""


def logits_of(card: ModelCard, prompts: list[list[int]], **options: object) -> torch.Tensor:
    keep = KeepLogits()
    driver = Driver(load_runner(card, RunnerOptions(device="cpu", num_blocks=64, **options), lambda: keep))
    found = []
    for prompt in prompts:
        driver.step([(driver.add(prompt), len(prompt))])
        found.append(keep.last.float())
    return torch.cat(found)


PROMPTS = [list(range(1, 1 + length)) for length in (1, 5, 40)]


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    "kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0], ids=lambda k: k.name
)
def test_logits_are_those_of_torch_on_the_same_file(tmp_path: Path, kind: Kind, is_tied: bool) -> None:
    """Rotary rows are put back in order as rows of blocks; the second start maps what the first packed."""
    tensors = {
        name: SCALE * each if each.ndim == 2 else each
        for name, each in random_tensors(is_tied=is_tied).items()
    }
    card = describe(write_gguf(tmp_path / "a.gguf", tensors, kind=kind), "tiny")
    expected = logits_of(card, PROMPTS, dtype="float32", backend="torch")
    for _ in range(2):
        found = logits_of(card, PROMPTS, backend="host", weights="int4")
        assert relative_error(found, expected) < BOUND


def test_parts_of_several_kinds(tmp_path: Path) -> None:
    """Queries, keys and values stay what they are where they are whole panels; else the linear is bf16."""
    card = describe(write_gguf(tmp_path / "a.gguf", kind=Kind.Q4_1), "tiny")
    kinds = FileWeights(card).kinds()
    library = load_library(Build(find_compiler()))

    def runs_of(linear: str, changed: dict[str, Kind]) -> list[tuple[Format, int]]:
        expected = LLAMA.shapes(card.architecture)
        layout = plan_layout(card.architecture, expected, kinds | changed, "int4", library)
        return [(run.format, run.num_panels) for run in layout.linears[linear].runs]

    assert runs_of("0.qkv", {}) == [(Format.Q4_MIN, 4)]
    value = {"model.layers.0.self_attn.v_proj.weight": Kind.Q6_K}
    assert runs_of("0.qkv", value) == [(Format.Q4_MIN, 2), (Format.Q4_MIN, 1), (Format.Q6, 1)]
    up = {"model.layers.0.mlp.up_proj.weight": Kind.Q8_0}
    assert runs_of("0.gate_up", up) == [(Format.BF16, 8)]
    assert runs_of("0.down", {"model.layers.0.mlp.down_proj.weight": Kind.IQ4_NL}) == [(Format.BF16, 2)]
