"""Linears over quantised weights."""

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.gpu.kernels import linear_int4, linear_int8
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.linear_tile import rows_class
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.workload import Workload, random, relative_error

GROUP = 32


def int8(shape: ModelShape, name: str, num_tokens: int, device: torch.device) -> Workload:
    """One of ModelShape.linears."""
    num_inputs, num_outputs = shape.linears[name]
    weight = random((num_outputs, num_inputs), device)
    codes, scales = linear_int8.pack_int8(weight)
    x = random((num_tokens, num_inputs), device)
    most = rows_class(num_tokens)

    def run(config: LaunchConfig | None) -> Tensor:
        return linear_int8.linear_int8(x, codes, scales, None, config)

    def error(config: LaunchConfig | None) -> float:
        expected = x.float() @ (codes.view(torch.int8).float() * scales[:, None]).T
        return relative_error(run(config), expected)

    return Workload(
        "linear_int8",
        f"int8 {shape.name} {name} {num_tokens}",
        linear_int8.CONFIGS[most],
        {"outputs": num_outputs, "max_rows": most},
        run,
        error,
        num_bytes=codes.numel() + 2 * (x.numel() + num_tokens * num_outputs),
        num_flops=2 * num_tokens * codes.numel(),
        rival=lambda: F.linear(x, weight),
    )


def int4(shape: ModelShape, name: str, num_tokens: int, device: torch.device) -> Workload:
    """The same over a GGUF's blocks."""
    num_inputs, num_outputs = shape.linears[name]
    codes = torch.randint(0, 256, (num_outputs, num_inputs // 2), dtype=torch.uint8, device=device)
    groups = (num_outputs, num_inputs // GROUP)
    scales, minima = (random(groups, device, torch.float16) for _ in range(2))
    x = random((num_tokens, num_inputs), device)
    most = rows_class(num_tokens)

    def run(config: LaunchConfig | None) -> Tensor:
        return linear_int4.linear_int4(x, codes, scales, minima, None, config)

    def error(config: LaunchConfig | None) -> float:
        return relative_error(run(config), x.float() @ _unpacked(codes, scales, minima).T)

    return Workload(
        "linear_int4",
        f"int4 {shape.name} {name} {num_tokens}",
        linear_int4.CONFIGS[most],
        {"outputs": num_outputs, "max_rows": most},
        run,
        error,
        num_bytes=codes.numel() + 4 * scales.numel() + 2 * (x.numel() + num_tokens * num_outputs),
        num_flops=4 * num_tokens * codes.numel(),
    )


def _unpacked(codes: Tensor, scales: Tensor, minima: Tensor) -> Tensor:
    # in a group the low four bits of its bytes, then the high ones (ggml's Q4_1) -> fp32 [out, in]
    halves = codes.unflatten(1, (-1, GROUP // 2))
    numbers = torch.cat((halves & 15, halves >> 4), -1).float()
    return (numbers * scales.float()[..., None] + minima.float()[..., None]).flatten(1)
