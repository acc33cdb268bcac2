"""A linear layer over 4-bit weights in groups of 32 with a scale and a minimum, as Q4_0 and Q4_1 blocks of a
GGUF have them, and activations as they are.

Shapes: x [T, in] bf16 or fp32, strided in its first dimension; codes [out, in / 2] uint8, 16 bytes a group,
the first 16 weights in their low four bits, the last in the high; scales, minima [out, in / 32] fp16; bias
[out] or None; -> [T, out]. A weight is code * scale + minimum in fp32, rounded to x's dtype; sums are fp32.
Read: 5 bits a weight once for each tile of rows (linear_tile), and T * in * 2 bytes for each tile of outputs,
from the L2 cache. Flops: 2 * T * in * out, and 4 operations to widen a weight, for each tile of rows.
"""

import numpy as np
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
from pipeline.gpu.kernels.widen import widen_nibble
from pipeline.gpu.weights.blocks import Blocks

GROUP = 32
HALF = tl.constexpr(16)
"""Codes of a group, in bytes."""
BLOCK_KINDS = frozenset(("Q4_0", "Q4_1"))
ZERO = 8
"""The code of Q4_0 that stands for 0."""
CONFIGS: Configs = {
    FEW_ROWS: LaunchConfig(4, 6, {"ROWS": 16, "COLUMNS": 32}),
    SOME_ROWS: LaunchConfig(4, 4, {"ROWS": 64, "COLUMNS": 32}),
    0: LaunchConfig(8, 2, {"ROWS": 128, "COLUMNS": 64}),
}
"""Few rows: 10 KB of codes on their way in a program, as many programs as an H100 has multiprocessors from
4,096 outputs on. Many: as large as registers allow."""


@triton.jit
def dequantised(nibbles, scale, minimum, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """[outputs, DEPTH] 0..15 of groups of HALF, scale and minimum [outputs, DEPTH / HALF, 1] -> fp32."""
    groups = widen_nibble(nibbles).reshape(COLUMNS, DEPTH // HALF, HALF)
    return (groups * scale + (minimum - 128.0 * scale)).reshape(COLUMNS, DEPTH)


@triton.jit
def int4_kernel(
    x, codes, scales, minima, bias, out, num_rows, x_stride,
    OUT: tl.constexpr, IN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """On a grid [tiles of rows, tiles of outputs]. Low and high codes are products of their own: so no code
    changes its place."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    x += row.to(tl.int64)[:, None] * x_stride
    codes += output.to(tl.int64)[:, None] * (IN // 2)
    groups = output.to(tl.int64)[:, None] * (IN // (2 * HALF))
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, IN // 2, DEPTH // 2):
        byte = first + tl.arange(0, DEPTH // 2)
        group = first // HALF + tl.arange(0, DEPTH // (2 * HALF))
        column = byte // HALF * (2 * HALF) + byte % HALF
        is_x = (row < num_rows)[:, None]
        is_code = (output < OUT)[:, None]
        is_group = is_code
        if IN % DEPTH:
            is_x = is_x & (byte < IN // 2)[None, :]
            is_code = is_code & (byte < IN // 2)[None, :]
            is_group = is_group & (group < IN // (2 * HALF))[None, :]
        low = tl.load(x + column[None, :], mask=is_x, other=0.0)
        high = tl.load(x + HALF + column[None, :], mask=is_x, other=0.0)
        stored = tl.load(codes + byte[None, :], mask=is_code, other=0).to(tl.int32)
        at = groups + group[None, :]
        scale = tl.load(scales + at, mask=is_group, other=0.0).to(tl.float32)[:, :, None]
        minimum = tl.load(minima + at, mask=is_group, other=0.0).to(tl.float32)[:, :, None]
        weights = dequantised(stored & 15, scale, minimum, COLUMNS, DEPTH // 2).to(low.dtype)
        acc = tl.dot(low, tl.trans(weights), acc, input_precision="ieee")
        weights = dequantised(stored >> 4, scale, minimum, COLUMNS, DEPTH // 2).to(low.dtype)
        acc = tl.dot(high, tl.trans(weights), acc, input_precision="ieee")
    store_outputs(acc, bias, out, row, output, num_rows, OUT)


class Int4Linear:
    """Implements gpu.api.Linear over a GGUF's blocks as they are."""

    __slots__ = ("_bias", "_codes", "_minima", "_scales")

    def __init__(self, weight: Blocks, bias: Tensor | None, device: torch.device) -> None:
        packed = (part.to(device) for part in pack_int4(weight))
        self._codes, self._scales, self._minima = packed
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return linear_int4(x, self._codes, self._scales, self._minima, self._bias)


def pack_int4(weight: Blocks) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales, minima of Q4_0 and Q4_1 blocks, nothing rounded. Raises ValueError for other kinds."""
    if weight.kind.name not in BLOCK_KINDS:
        raise ValueError(f"blocks of {weight.kind.name} are not 4 bits with a scale and a minimum")
    head_bytes = 4 if weight.kind.name == "Q4_1" else 2
    num_outputs, num_inputs = weight.shape
    blocks = weight.rows.reshape(num_outputs, num_inputs // GROUP, -1)
    heads = np.ascontiguousarray(blocks[..., :head_bytes]).view(np.float16)
    scales = torch.from_numpy(heads[..., 0].copy())
    minima = torch.from_numpy(heads[..., 1].copy()) if head_bytes == 4 else scales * -ZERO
    codes = torch.from_numpy(blocks[..., head_bytes:].reshape(num_outputs, num_inputs // 2))
    return codes, scales, minima


def linear_int4(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    minima: Tensor,
    bias: Tensor | None,
    config: LaunchConfig | None = None,
) -> Tensor:
    """[T, in] -> a new tensor, [T, out], of x's dtype."""
    num_rows, num_outputs, num_inputs = len(x), len(codes), 2 * codes.shape[1]
    check_input(x, num_inputs)
    config = config or config_for("linear_int4", CONFIGS, num_rows, num_outputs, x.device)
    out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    int4_kernel[grid_of(num_rows, num_outputs, config)](
        x,
        codes,
        scales,
        minima,
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
    pointers = {"x": "*bf16", "codes": "*u8", "scales": "*fp16", "minima": "*fp16", "out": "*bf16"}
    return variants_of(int4_kernel, "linear_int4", pointers, shape, CONFIGS, find)
