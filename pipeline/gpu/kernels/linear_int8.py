"""A linear layer over int8 weights with one scale an output, and activations as they are (no rounding).

Shapes: x [T, in] bf16 or fp32, strided in its first dimension; codes [out, in] uint8 in two's complement,
-127..127; scales [out] fp32; bias [out] or None; -> [T, out]. Codes are exact in bf16, sums are fp32, and an
output's scale multiplies its sum. Read: out * in bytes of codes once for each tile of rows (linear_tile), and
T * in * 2 for each tile of outputs, from the L2 cache. Flops: 2 * T * in * out. Sums go along `in` in steps
of DEPTH, one program each, in order: no split, so no second pass.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.kernels.finding import Find, LaunchConfig, keep_default
from pipeline.gpu.kernels.linear_tile import (
    DEPTH,
    FEW_ROWS,
    SOME_ROWS,
    Configs,
    check_input,
    config_for,
    grid_of,
    store_outputs,
    variants_of,
)
from pipeline.gpu.kernels.variant import ModelShape, Variant
from pipeline.gpu.kernels.widen import widen_int8_bytes

MAX_CODE = 127
CONFIGS: Configs = {
    FEW_ROWS: LaunchConfig(4, 6, {"ROWS": 16, "COLUMNS": 32}),
    SOME_ROWS: LaunchConfig(4, 4, {"ROWS": 64, "COLUMNS": 64}),
    0: LaunchConfig(8, 2, {"ROWS": 128, "COLUMNS": 64}),
}
"""Few rows: 20 KB of codes on their way in a program, as many programs as an H100 has multiprocessors from
4,096 outputs on. Many: as large as registers allow."""


@triton.jit
def int8_kernel(
    x, codes, scales, bias, out, num_rows, x_stride,
    OUT: tl.constexpr, IN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """On a grid [tiles of rows, tiles of outputs]."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    x += row.to(tl.int64)[:, None] * x_stride
    codes += output.to(tl.int64)[:, None] * IN
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, IN, DEPTH):
        column = first + tl.arange(0, DEPTH)
        is_x = (row < num_rows)[:, None]
        is_weight = (output < OUT)[:, None]
        if IN % DEPTH:
            is_x = is_x & (column < IN)[None, :]
            is_weight = is_weight & (column < IN)[None, :]
        inputs = tl.load(x + column[None, :], mask=is_x, other=0.0)
        stored = tl.load(codes + column[None, :], mask=is_weight, other=0)
        weights = widen_int8_bytes(stored).to(inputs.dtype)
        acc = tl.dot(inputs, tl.trans(weights), acc, input_precision="ieee")
    acc *= tl.load(scales + output, mask=output < OUT, other=0.0)[None, :]
    store_outputs(acc, bias, out, row, output, num_rows, OUT)


class Int8Linear:
    """Implements gpu.api.Linear; rounds weight [out, in] to codes, to half a scale of a largest / 127."""

    __slots__ = ("_bias", "_codes", "_scales")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._codes, self._scales = pack_int8(weight)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return linear_int8(x, self._codes, self._scales, self._bias)


def pack_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[out, in] of any float dtype -> codes [out, in] uint8, scales [out] fp32."""
    wide = weight.float()
    scales = wide.abs().amax(1) / MAX_CODE
    codes = (wide / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round()
    return codes.to(torch.int8).view(torch.uint8), scales


def linear_int8(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, config: LaunchConfig | None = None
) -> Tensor:
    """[T, in] -> a new tensor, [T, out], of x's dtype."""
    num_rows, (num_outputs, num_inputs) = len(x), codes.shape
    check_input(x, num_inputs)
    config = config or config_for("linear_int8", CONFIGS, num_rows, num_outputs, x.device)
    out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    int8_kernel[grid_of(num_rows, num_outputs, config)](
        x,
        codes,
        scales,
        bias,
        out,
        num_rows,
        x.stride(0),
        OUT=num_outputs,
        IN=num_inputs,
        DEPTH=DEPTH,
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def variants(shape: ModelShape, find: Find = keep_default) -> list[Variant]:
    """Of every product, by the number of rows."""
    pointers = {"x": "*bf16", "codes": "*u8", "scales": "*fp32", "out": "*bf16"}
    return variants_of(int8_kernel, "linear_int8", pointers, shape, CONFIGS, find)
