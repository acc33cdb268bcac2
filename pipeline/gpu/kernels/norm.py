"""Root mean square norm over the last dimension, with or without the sum of residuals before it.

    s   = x                          rms_norm
    s   = residual + x, kept there   add_rms_norm; the sum is of the model's dtype
    out = s / sqrt(mean(s^2) + eps) * weight     (Zhang & Sennrich 2019)

x [T, C] or [T, heads, C], bf16 or fp32, its last dimension contiguous, any strides else; residual [T, C] of
the same dtype; weight [C], bf16 or fp32; out is new, contiguous, of x's dtype. The mean is in fp32; the norm
is rounded to the weight's dtype before the product, and the product to it, as in reference.ops.
Bytes moved, of N elements in e bytes each: 2 N e, with residuals 4 N e; 4 N flops.

A program has whole rows, as many as fill ELEMENTS, so a row's sum has one order whatever is beside it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.kernels.finding import Find, LaunchConfig, find_config, keep_default
from pipeline.gpu.kernels.variant import ModelShape, Variant

DEFAULT = LaunchConfig(num_warps=8, num_stages=1, constants={"ELEMENTS": 2048})
"""8 elements a thread are one load of 16 bytes in bf16; a row of 8,192 takes 32 a thread, still in registers.
Nothing is read twice, so there is nothing to pipeline."""


@triton.jit
def rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    eps,
    num_rows,
    x_stride_t,
    x_stride_h,
    residual_stride_t,
    NUM_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    mask = (rows < num_rows) & (columns < WIDTH)
    offsets = (rows // NUM_HEADS) * x_stride_t + (rows % NUM_HEADS) * x_stride_h + columns
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        places = residual_ptr + rows * residual_stride_t + columns
        residual = tl.load(places, mask=mask, other=0.0)
        x = (residual.to(tl.float32) + x.to(tl.float32)).to(x.dtype)
        tl.store(places, x, mask=mask)
    wide = x.to(tl.float32)
    mean = tl.sum(wide * wide, 1) / WIDTH
    weight = tl.load(weight_ptr + columns, mask=columns < WIDTH, other=0.0)
    normed = (wide * tl.rsqrt(mean + eps)[:, None]).to(weight.dtype)
    product = (normed.to(tl.float32) * weight.to(tl.float32)).to(weight.dtype)
    tl.store(out_ptr + rows * WIDTH + columns, product.to(x.dtype), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, config: LaunchConfig | None = None) -> Tensor:
    """[T, C] or [T, heads, C] -> a new tensor of the same shape."""
    return _launch(x, None, weight, eps, config)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, config: LaunchConfig | None = None
) -> Tensor:
    """residual += x in place, then its norm: [T, C], [T, C] -> a new tensor."""
    if x.shape != residual.shape or x.dim() != 2 or x.dtype != residual.dtype or residual.stride(-1) != 1:
        raise ValueError(f"x {_describe(x)} and residual {_describe(residual)} are not of one kind")
    return _launch(x, residual, weight, eps, config)


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, config: LaunchConfig | None
) -> Tensor:
    if x.dim() not in (2, 3) or x.stride(-1) != 1 or weight.shape != x.shape[-1:]:
        raise ValueError(f"no norm of {_describe(x)} with weight {_describe(weight)}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_heads, width = (1 if x.dim() == 2 else x.shape[1]), x.shape[-1]
    config = config or find_config("norm", DEFAULT, x.device, width=width)
    constants = _constants(num_heads, width, residual is not None, config)
    num_rows = x.shape[0] * num_heads
    rms_norm_kernel[(triton.cdiv(num_rows, constants["ROWS"]),)](
        x,
        x if residual is None else residual,
        weight,
        out,
        eps,
        num_rows,
        x.stride(0),
        x.stride(-2),
        0 if residual is None else residual.stride(0),
        **constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def _constants(num_heads: int, width: int, has_residual: bool, config: LaunchConfig) -> dict[str, int | bool]:
    block = triton.next_power_of_2(width)
    return {
        "NUM_HEADS": num_heads,
        "WIDTH": width,
        "BLOCK": block,
        "ROWS": max(1, config.constants["ELEMENTS"] // block),
        "HAS_RESIDUAL": has_residual,
    }


def _describe(x: Tensor) -> str:
    return f"{list(x.shape)} {x.dtype} of strides {list(x.stride())}"


def variants(shape: ModelShape, find: Find = keep_default) -> list[Variant]:
    """Of the hidden size with and without residuals, and of the heads of queries and keys."""
    widths = {
        "norm": (1, shape.hidden_size, False),
        "add_norm": (1, shape.hidden_size, True),
        "q_norm": (shape.num_heads, shape.head_dim, False),
        "k_norm": (shape.num_kv_heads, shape.head_dim, False),
    }
    return [
        _variant(f"{name} {shape.name} {weight}", weight, sizes, find("norm", DEFAULT, width=sizes[1]))
        for name, sizes in widths.items()
        for weight in ("bf16", "fp32")
    ]


def _variant(name: str, weight: str, sizes: tuple[int, int, bool], config: LaunchConfig) -> Variant:
    pointers = {"x_ptr": "*bf16", "residual_ptr": "*bf16", "weight_ptr": f"*{weight}", "out_ptr": "*bf16"}
    strides = ("x_stride_t", "x_stride_h", "residual_stride_t")
    return Variant(
        name=name,
        kernel=rms_norm_kernel,
        types={**pointers, "eps": "fp32", "num_rows": "i32", **dict.fromkeys(strides, "i32")},
        constants=_constants(*sizes, config),
        aligned=frozenset((*pointers, *strides)),
        config=config,
        max_registers=64,  # four programs of 8 warps fill a multiprocessor's 64 Ki registers
    )
