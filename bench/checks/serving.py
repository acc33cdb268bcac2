"""A whole model through the runner: tokens a second, what the host adds to a step, graphs against none."""

import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import torch

from bench.checks.bench import Bench
from bench.checks.models import MAX_LEN, MODELS, decode, new_runner, num_weight_bytes
from bench.checks.rows import Row
from pipeline.gpu.kv.dtype import token_bytes
from pipeline.gpu.runner import Runner
from pipeline.messages import StepHandle

GAP_TARGET = 0.05
"""Of a step: how long the device waits for the host, for a model of 8B."""
SIZES = (1, 16, 64, 256)
"""Rows of a step."""
CONTEXT = 1024
FREE_SHARE = 0.85
"""Of what is free: the rest is for steps, graphs, and what the layers' products are made of."""
WARM_UP_STEPS = 4


def run(bench: Bench, model: str) -> Iterator[Row]:
    """Of one model, by rows in a step: with graphs, then kernel by kernel."""
    sizes = _that_fit(bench, model)
    if not sizes:
        yield Row(f"serving {model}", "not measured", "its weights do not fit this GPU")
        return
    yield from _rows(bench, model, sizes, has_graphs=True)
    if not bench.is_tiny:
        yield from _rows(bench, model, sizes[:2], has_graphs=False)


def _that_fit(bench: Bench, model: str) -> list[int]:
    if bench.is_tiny:
        return [1, 2]
    architecture = MODELS[model]
    left = FREE_SHARE * torch.cuda.mem_get_info(bench.device)[0] - num_weight_bytes(architecture)
    row_bytes = MAX_LEN * token_bytes(architecture, "bf16")
    return [num_rows for num_rows in SIZES if num_rows * row_bytes <= left]


def _rows(bench: Bench, model: str, sizes: list[int], *, has_graphs: bool) -> Iterator[Row]:
    architecture = MODELS["tiny" if bench.is_tiny else model]
    most = max(sizes)
    runner = new_runner(architecture, bench.device, "triton", max_num_seqs=most, has_graphs=has_graphs)
    for num_rows in sizes:
        yield _row(bench, runner, model, num_rows, has_graphs)
    runner.close()
    del runner
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()


def _row(bench: Bench, runner: Runner, model: str, num_rows: int, has_graphs: bool) -> Row:
    num_steps, context = (2, 20) if bench.is_tiny else (48, CONTEXT)
    decode(runner, num_rows, context, 1 if bench.is_tiny else WARM_UP_STEPS)
    begin = time.perf_counter()
    done = decode(runner, num_rows, context, num_steps)
    step_s = (time.perf_counter() - begin) / num_steps
    gap, launch_ms = _gap(done.handles), 1e3 * statistics.median(done.launch_s)
    share = _floor_s(bench, model, num_rows, context) / step_s
    values = {"tokens_per_s": num_rows / step_s, "step_ms": 1e3 * step_s, "gap": gap}
    values |= {"share": share, "launch_ms": launch_ms}
    result = (
        f"{num_rows / step_s:9,.0f} tok/s, {1e3 * step_s:7.2f} ms a step = {share:4.0%} of memory's floor,"
        f" {launch_ms:.2f} ms to launch, host gap {gap:5.1%}"
    )
    is_held = model == "8B" and has_graphs and not bench.is_tiny
    name = f"{model} x {num_rows}, {'graphs' if has_graphs else 'kernel by kernel'}"
    target = f"gap {GAP_TARGET:.0%}" if is_held else ""
    return Row(f"serving {model}", name, result, not is_held or gap < GAP_TARGET, target, values)


def _gap(handles: list[StepHandle]) -> float:
    """Of the time from one step's begin to the next one's, the share in which the device ran neither."""
    spans = [(handle.begin_ns, handle.end_ns) for handle in handles]  # to be asked for in order
    shares = [max(0, later - end) / max(1, later - begin) for (begin, end), (later, _) in pairwise(spans)]
    return statistics.median(shares)


def _floor_s(bench: Bench, model: str, num_rows: int, context: int) -> float:
    """To read all weights, and the keys and values of all rows, once."""
    architecture = MODELS["tiny" if bench.is_tiny else model]
    kv_bytes = num_rows * context * token_bytes(architecture, "bf16")
    return (num_weight_bytes(architecture) + kv_bytes) / bench.rates.bytes_per_s
