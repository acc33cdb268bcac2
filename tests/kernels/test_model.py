"""Whole models on Triton's kernels, in the interpreter, through the real scheduler: the plans, the tokens and
the logits are those of the torch reference."""

import random
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from pipeline.messages import TokenizedRequest
from tests.gpu.driver import TINY, Driver, KeepLogits, random_tensors
from tests.kernels.isolated import isolated
from tests.kernels.served import Served, request, serve

BLOCK_SIZE = 8
SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 40, "num_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SMALL | {"num_kv_heads": 1, "num_layers": 1},
    "qwen3": SMALL | {"family": "qwen3", "qk_norm": True, "num_kv_heads": 2, "num_layers": 1},
    "gemma3": SMALL
    | {
        "family": "gemma3",
        "num_kv_heads": 1,
        "qk_norm": True,
        "post_norms": True,
        "activation": "gelu",
        "embedding_scale": 32**0.5,
        "rope_theta": 1e6,
        "local_rope_theta": 1e4,
        "layer_windows": (12, 0),
        "logits_cap": 5.0,
        "attention_scale": 0.3,
    },
}
TOLERANCE = 2e-5
"""Of logits of size 1 to 5 in fp32; what differs is the order of sums."""
CODES_TOLERANCE = 0.05
"""The same where keys and values are rounded when they are stored, some of them then to the other side."""
BF16_ERROR = 0.02
"""Of the error's norm, as a share of the logits'."""


def architecture(name: str, kv_dtype: str = "auto") -> Architecture:
    head_dim = 32 if kv_dtype == "int4" else TINY.head_dim  # int4 has a scale for 32 elements
    return msgspec.structs.replace(TINY, **MODELS[name], head_dim=head_dim)


def both(name: str, requests: list[TokenizedRequest], together: int = 3, **options: Any) -> list[Served]:
    """On the reference and on Triton."""
    sizes = {"block_size": BLOCK_SIZE, "max_num_seqs": 3, "max_num_batched_tokens": 16}
    given: dict[str, Any] = {"device": "cpu", "dtype": "float32", **sizes, **options}
    shape = architecture(name, given.get("kv_dtype", "auto"))
    return [
        serve(shape, requests, RunnerOptions(backend=backend, **given), together)
        for backend in ("torch", "triton")
    ]


def assert_same(expected: Served, found: Served, tolerance: float = TOLERANCE) -> None:
    assert found.plans == expected.plans
    assert found.outputs == expected.outputs
    assert len(found.logits) == len(expected.logits)
    for ours, theirs in zip(found.logits, expected.logits, strict=True):
        assert (ours - theirs).abs().max() <= tolerance


def prompts(seed: int, lengths: list[int], num_shared: int) -> list[list[int]]:
    """Their first tokens are the same."""
    rng = random.Random(seed)
    shared = [rng.randrange(TINY.vocab_size) for _ in range(num_shared)]
    return [(shared + [rng.randrange(TINY.vocab_size) for _ in range(length)])[:length] for length in lengths]


@isolated
def test_prefix_hits_chunks_and_recomputation() -> None:
    asked = [
        request(k, prompt, max_tokens)
        for k, (prompt, max_tokens) in enumerate(zip(prompts(1, [17, 14, 22], 10), [3, 8, 4], strict=True))
    ]
    expected, found = both("llama", asked, together=2, num_blocks=5)
    assert_same(expected, found)
    assert found.num_hit_tokens == 16 and found.num_preemptions == 1 and not found.num_swaps
    counts = [plan.num_tokens for plan in found.plans]
    assert any(1 in each and max(each) > 1 for each in counts), "chunks beside decode rows"
    assert any(sum(each) == 16 for each in counts), "a prompt in two chunks"


@isolated
def test_blocks_of_codes_that_are_swapped() -> None:
    asked = [
        request(k, prompt, max_tokens)
        for k, (prompt, max_tokens) in enumerate(zip(prompts(1, [12, 14, 17], 10), [6, 9, 4], strict=True))
    ]
    expected, found = both("qwen3", asked, together=2, num_blocks=4, host_kv_memory="1MiB", kv_dtype="int8")
    assert_same(expected, found, CODES_TOLERANCE)
    assert found.num_hit_tokens == 16 and found.num_swaps == 1


@pytest.mark.nightly
@isolated
def test_contexts_that_drop_blocks() -> None:
    """One by its window, one by the weight of its blocks, in a model with windows of its own."""
    (first, second), keep = prompts(2, [30, 27], 0), {"kv_budget": 24, "kv_sinks": 8}
    asked = [
        request(0, first, 3, kv_eviction="sink_window", **keep),
        request(1, second, 6, kv_eviction="heavy_hitter", **keep),
    ]
    expected, found = both("gemma3", asked, num_blocks=12)
    assert_same(expected, found)
    assert found.num_dropped_blocks >= 2
    assert {len(plan.questions) for plan in found.plans} > {0}


KINDS: dict[str, dict[str, Any]] = {
    "recomputed": {},
    "swapped": {"host_kv_memory": "1MiB"},
    "sink_window": {},
    "heavy_hitter": {},
}


def check_long_run(name: str, kind: str, kv_dtype: str, tolerance: float) -> None:
    """Six requests over 8 blocks, four at a time, three of them in slots; their prefixes are shared."""
    is_dropping = kind in ("sink_window", "heavy_hitter")
    terms = {"kv_eviction": kind, "kv_budget": 24, "kv_sinks": 8} if is_dropping else {}
    texts = prompts(7, [14, 11, 12, 23, 20, 31], 18)
    asked = [request(k, text, 9 + 5 * (k % 3), **terms) for k, text in enumerate(texts)]
    expected, found = both(name, asked, together=4, num_blocks=8, kv_dtype=kv_dtype, **KINDS[kind])
    assert_same(expected, found, tolerance)
    assert found.num_hit_tokens and found.num_preemptions
    assert (found.num_dropped_blocks > 0) == is_dropping
    assert (found.num_swaps > 0) == (kind == "swapped")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
@isolated
def test_long_runs(name: str, kind: str) -> None:
    check_long_run(name, kind, "auto", TOLERANCE)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
@isolated
def test_long_runs_over_codes(kv_dtype: str, kind: str) -> None:
    check_long_run("llama", kind, kv_dtype, CODES_TOLERANCE)


def bf16_logits(name: str, backend: Any, kv_dtype: Any) -> Tensor:
    """Of prompts in chunks beside decode rows, all fed the same tokens."""
    keep, sizes = KeepLogits(), {"block_size": BLOCK_SIZE, "num_blocks": 20, "max_num_seqs": 3}
    options = RunnerOptions(device="cpu", backend=backend, kv_dtype=kv_dtype, **sizes)
    shape = architecture(name, kv_dtype)
    driver = Driver(build_runner(shape, random_tensors(shape), options, lambda: keep))
    first, second = (driver.add(prompt) for prompt in prompts(3, [11, 14], 0))
    steps = [[(first, 10)], [(first, 1), (second, 9)], [(second, 5)]]
    return torch.cat([keep.last.float() for rows in steps if driver.step(rows)])


def check_bf16(name: str, kv_dtype: str) -> None:
    expected, found = (bf16_logits(name, backend, kv_dtype) for backend in ("torch", "triton"))
    assert found.shape == (2, TINY.vocab_size)
    assert (found - expected).norm() <= BF16_ERROR * expected.norm()


@isolated
def test_a_model_in_bf16() -> None:
    check_bf16("qwen3", "auto")


@pytest.mark.nightly
@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8", "int4"])
@pytest.mark.parametrize("name", MODELS)
@isolated
def test_models_in_bf16(name: str, kv_dtype: str) -> None:
    check_bf16(name, kv_dtype)
