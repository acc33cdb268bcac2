"""Times of the kernels against what memory and tensor cores of this GPU allow, and against torch's own."""

from collections.abc import Iterator

import torch

from bench.checks.bench import Bench
from bench.checks.correctness import TINY_SHAPE
from bench.checks.rows import Row
from pipeline.gpu.kernels.shapes import MODELS
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.attention import decode, prefill
from pipeline.gpu.kernels.workloads.choices import sample
from pipeline.gpu.kernels.workloads.rows import add_norm, gate, rope
from pipeline.gpu.kernels.workloads.weights import int4, int8
from pipeline.gpu.kernels.workloads.workload import Workload

DECODE_TARGET, PREFILL_TARGET = 0.88, 0.65
"""Of the floor: of measured bandwidth, from 16 rows of 2,048 on; of the measured bf16 rate, from 4,096 on."""
DECODES = ((1, 2048), (1, 32_768), (16, 2048), (64, 2048), (256, 2048))
PREFILLS = ((1, 1024, 1024), (1, 4096, 4096), (1, 512, 8192))


def run(bench: Bench) -> Iterator[Row]:
    """A row a launch; its inputs go before the next one's are made."""
    for shape in _shapes(bench):
        yield from _attention(bench, shape)
    for shape in _shapes(bench):
        for tokens in (3,) if bench.is_tiny else (64, 4096):
            for build in (add_norm, gate, rope):
                yield _row(bench, build(shape, tokens, bench.device), None)
            for product in (int8, int4):
                yield _row(bench, product(shape, "down", tokens, bench.device), None)
        for num_rows in (4,) if bench.is_tiny else (4, 256):
            yield _row(bench, sample(shape, num_rows, bench.device), None)


def _shapes(bench: Bench) -> list[ModelShape]:
    return [TINY_SHAPE] if bench.is_tiny else [MODELS["Llama-3.1-8B"], MODELS["Llama-3.2-1B"]]


def _attention(bench: Bench, shape: ModelShape) -> Iterator[Row]:
    for num_rows, context in ((2, 40),) if bench.is_tiny else DECODES:
        target = DECODE_TARGET if num_rows >= 16 else None
        yield _row(bench, decode(shape, num_rows, context, bench.device), target)
    for kv_dtype in ("int8", "fp8", "int4"):
        quantised = shape._replace(kv_dtype=kv_dtype)
        yield _row(bench, decode(quantised, *((2, 20) if bench.is_tiny else (64, 2048)), bench.device), None)
    for num_rows, queries, context in ((1, 20, 20),) if bench.is_tiny else PREFILLS:
        target = PREFILL_TARGET if queries >= 4096 else None
        yield _row(bench, prefill(shape, num_rows, queries, context, bench.device), target)


def _row(bench: Bench, workload: Workload, target: float | None) -> Row:
    ms = bench.median_ms(lambda: workload.run(None))
    floor = bench.rates.floor_ms(workload.num_bytes, workload.num_flops)
    values = {"ms": ms, "floor_ms": floor, "share": floor / ms}
    result = f"{ms:9.4f} ms = {floor / ms:4.0%} of the floor"
    if workload.rival is not None:
        values["rival_ms"] = bench.median_ms(workload.rival)
        result += f", {values['rival_ms'] / ms:.2f} x torch"
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
    ok = bench.is_tiny or target is None or floor / ms >= target
    return Row("kernels", _name(workload), result, ok, f"{target:.0%}" if target else "", values)


def _name(workload: Workload) -> str:
    return f"{workload.kernel} {workload.name}" if workload.kernel.startswith("attention") else workload.name
