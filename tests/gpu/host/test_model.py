"""Whole steps on the host kernels against the torch model in fp32, on random weights: mixed batches of decode
rows, prompts and chunks.
"""

from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.checkpoint.card import Architecture, ModelCard
from pipeline.gpu.host.build import Build, find_compiler
from pipeline.gpu.host.library import load_library
from pipeline.gpu.host.model import HostDecoder
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner, load_runner
from pipeline.gpu.weights.load import load_tensors
from pipeline.gpu.weights.source import GivenWeights
from tests.gpu import test_gemma3, test_llama, test_qwen
from tests.gpu.driver import TINY, Driver, KeepLogits, random_tensors
from tests.gpu.oracle import hugging_face
from tests.gpu.test_model import real_prompts

VARIANTS = test_llama.VARIANTS | test_qwen.VARIANTS | test_gemma3.VARIANTS
BOUNDS = {"bf16": 0.01, "int8": 0.03}
"""Of the error's norm, as a share of the logits' norm. bf16 on torch has 0.007 to 0.008 here."""

KV_BOUNDS = {"int8": 0.01, "fp8": 0.025, "int4": 0.08}
"""The same, with bf16 weights, of what keys and values are stored as."""


def logits_of(architecture: Architecture, lengths: list[int], chunk: int, **options: Any) -> torch.Tensor:
    """Of three greedy tokens of each sequence, all fed the same tokens: those of the prompt, repeated."""
    keep = KeepLogits()
    options = {"device": "cpu", "num_blocks": 200, "max_num_seqs": 8, "num_threads": 2} | options
    runner = build_runner(architecture, random_tensors(architecture), RunnerOptions(**options), lambda: keep)
    driver = Driver(runner)
    found = []
    for _ in range(3):
        generator = torch.Generator().manual_seed(len(found))
        sequences = [
            driver.add(torch.randint(0, architecture.vocab_size, (length,), generator=generator).tolist())
            for length in lengths
        ]
        while rows := driver.next_rows([s for s in sequences if not s.output], chunk):
            if driver.step(rows):
                found.append(keep.last.float())
        for sequence in sequences:
            driver.remove(sequence)
    return torch.cat(found)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_torch_in_fp32(name: str) -> None:
    architecture = msgspec.structs.replace(TINY, **VARIANTS[name])
    case = (architecture, [1, 5, 130, 300, 17], 64)
    expected = logits_of(*case, dtype="float32")
    for weights, bound in BOUNDS.items():
        found = logits_of(*case, backend="host", weights=weights)
        assert relative_error(found, expected) < bound, weights


@pytest.mark.parametrize(("kv_dtype", "bound"), KV_BOUNDS.items())
def test_logits_with_quantised_keys_and_values_are_near(kv_dtype: str, bound: float) -> None:
    case = (TINY, [1, 5, 130, 300, 17], 64)
    found = logits_of(*case, backend="host", weights="bf16", kv_dtype=kv_dtype)
    assert relative_error(found, logits_of(*case, dtype="float32")) < bound


shapes = st.fixed_dictionaries(
    {
        "hidden_size": st.integers(1, 9).map(lambda n: 20 * n),
        "intermediate_size": st.integers(1, 200),
        "num_kv_heads": st.integers(1, 2),
        "num_heads": st.integers(1, 8),  # of each key/value head
        "head_dim": st.sampled_from([16, 64, 80, 96, 128, 256]),
        "vocab_size": st.integers(2, 200),
        "tie_embeddings": st.booleans(),
        "attention_bias": st.booleans(),
    }
)
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3", "qk_norm": True},
    "gemma3": test_gemma3.GEMMA,
}


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    shape=shapes,
    lengths=st.lists(st.integers(1, 280), min_size=1, max_size=4),
    chunk=st.sampled_from([16, 512]),
)
@settings(max_examples=15, deadline=None)
def test_odd_shapes(family: str, shape: dict[str, Any], lengths: list[int], chunk: int) -> None:
    shape = FAMILIES[family] | shape | {"num_heads": shape["num_heads"] * shape["num_kv_heads"]}
    architecture = msgspec.structs.replace(TINY, **shape)
    expected = logits_of(architecture, lengths, chunk, dtype="float32")
    for weights in ("bf16", "int8"):
        found = logits_of(architecture, lengths, chunk, backend="host", weights=weights, block_size=32)
        assert relative_error(found, expected) < 2 * BOUNDS[weights]


@pytest.mark.parametrize(("options", "what"), [({}, "a token id"), ({"max_position": 64}, "a position")])
def test_what_is_out_of_range_is_an_error_not_a_read(options: dict[str, int], what: str) -> None:
    architecture = msgspec.structs.replace(TINY, **options)
    library = load_library(Build(find_compiler()))
    model = HostDecoder.load(architecture, GivenWeights(random_tensors(architecture)), library, "bf16", 1)
    runner_options = RunnerOptions(device="cpu", num_blocks=20, backend="host")
    driver = Driver(build_runner(TINY, random_tensors(TINY), runner_options))
    driver.runner._model = model
    model.kv_format(20, 16, TINY.num_kv_heads, TINY.head_dim)
    sequence = driver.add([1] * 64 + [1 if options else TINY.vocab_size])
    with pytest.raises(IndexError, match=what):
        driver.step([(sequence, 65)])


@pytest.mark.model
def test_the_real_models_logits_are_near_those_of_transformers(model_card: ModelCard) -> None:
    """With int4 they are of the file's own blocks, of which transformers has every weight in fp32."""
    model, prompts = (
        hugging_face(model_card.architecture, load_tensors(model_card)),
        real_prompts(model_card)[3:7],
    )
    with torch.inference_mode():
        expected = [model(torch.tensor([prompt]), logits_to_keep=1).logits[0, 0] for prompt in prompts]
    for weights, bound in (("bf16", 0.02), ("int8", 0.1), ("int4", 0.1)):
        keep = KeepLogits()
        options = RunnerOptions(device="cpu", num_blocks=200, backend="host", weights=weights)
        driver = Driver(load_runner(model_card, options, lambda keep=keep: keep))
        for prompt, logits in zip(prompts, expected, strict=True):
            driver.step([(driver.add(prompt), len(prompt))])
            found = keep.last[0] - keep.last.mean()  # a shift of all logits changes no probability
            assert relative_error(found, logits - logits.mean()) < bound
