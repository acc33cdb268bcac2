"""Whether the kernels do on this GPU what plain torch does: each by itself, then a whole model."""

from collections.abc import Iterator
from typing import TypeAlias

import torch

from bench.checks.bench import Bench
from bench.checks.models import SMALL, greedy, new_runner
from bench.checks.rows import Row
from pipeline.gpu.kernels.shapes import MODELS
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.neighbours import count_differences
from pipeline.gpu.kernels.workloads.suite import BUILDERS, CHECKED, TINY, build
from pipeline.gpu.kv.dtype import KvDtype

Kinds: TypeAlias = dict[str, tuple[KvDtype, ...]]
"""Models, and what their keys and values are stored as."""

ATTENTION: Kinds = {
    "Llama-3.1-8B": ("bf16", "int8", "fp8", "int4"),
    "Llama-3.2-1B": ("bf16", "int8"),
    "Gemma-3-1B": ("bf16", "int8"),
    "Qwen2.5-0.5B": ("bf16",),
    "SmolLM2-135M": ("bf16",),
}
"""Every head dim and several group sizes; each is a compilation of seconds."""
CACHE: Kinds = {"Llama-3.1-8B": ("bf16", "int8", "fp8", "int4"), "Gemma-3-1B": ("bf16", "int8")}
WEIGHED: Kinds = {"Llama-3.1-8B": ("bf16", "int8"), "Gemma-3-1B": ("bf16",)}
OTHERS: Kinds = {"Llama-3.1-8B": ("bf16",), "Gemma-3-1B": ("bf16",)}
KINDS = {
    "attention_decode": ATTENTION,
    "attention_prefill": ATTENTION,
    "attention_mass": WEIGHED,
    "rope_kv": CACHE,
    "block_copy": CACHE,
}
"""Of the kernels that are not as OTHERS."""
TINY_SHAPE = ModelShape("tiny", 4, 2, 32, 64, 96, 128)


def run(bench: Bench) -> Iterator[Row]:
    """A row for a kernel and a model: the worst of its launches."""
    for kernel in BUILDERS:
        for shape in _shapes(bench, kernel):
            yield _row(bench, kernel, shape)
    yield _neighbours(bench)
    yield _whole_model(bench)


def _shapes(bench: Bench, kernel: str) -> list[ModelShape]:
    if bench.is_tiny:
        return [TINY_SHAPE]
    kinds = KINDS.get(kernel, OTHERS)
    return [MODELS[name]._replace(kv_dtype=each) for name, kv_dtypes in kinds.items() for each in kv_dtypes]


def _row(bench: Bench, kernel: str, shape: ModelShape) -> Row:
    workloads = build(kernel, shape, TINY if bench.is_tiny else CHECKED, bench.device)
    errors = [workload.error(None) for workload in workloads]
    worst, bound = max(errors), workloads[0].tolerance
    name = f"{kernel} {shape.name} {shape.kv_dtype}"
    ok = all(error <= bound for error in errors)
    return Row("correctness", name, f"off by {worst:.1e}", ok, f"{bound:.0e}", {"error": worst})


def _neighbours(bench: Bench) -> Row:
    """Rows that decode, and rows of a prompt: bit by bit the same alone as among others."""
    steps = [(1, 40), (20, 40)] if bench.is_tiny else [(1, 3000), (300, 900)]
    counts = [
        count_differences(shape, *step, bench.device)
        for shape in _shapes(bench, "attention_mass")
        for step in steps
    ]
    result = f"{sum(counts)} elements differ from the row alone"
    return Row("correctness", "a row among others", result, not any(counts), "0")


def _whole_model(bench: Bench) -> Row:
    """A prompt and greedy steps through the runner: the same tokens by Triton's ops and by torch's."""
    num_steps = 3 if bench.is_tiny else 32
    with torch.random.fork_rng(devices=[]):
        answers = [
            greedy(new_runner(SMALL, bench.device, backend, dtype="float32", max_num_seqs=2), num_steps)
            for backend in ("triton", "torch")
        ]
    same = sum(a == b for a, b in zip(*answers, strict=True))
    result = f"{same} of {len(answers[0])} greedy tokens as by torch"
    return Row("correctness", "a random model, through the runner", result, same == len(answers[0]))
