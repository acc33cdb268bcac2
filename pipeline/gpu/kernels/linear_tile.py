"""What the linears over stored codes have in common: tile sizes by rows, and how a result is stored.

DEPTH is one for all numbers of rows, and no configuration sets it, so that a row's sum has the same steps in
the same order among however many (docs/decisions/0024). That is why a configuration may go by a class of rows
here. How a step of 16 is rounded is the tensor cores' affair: before sm_90 there is one instruction; on sm_90
up to FEW_ROWS are multiplied by warps (HMMA), more by warp groups (HGMMA), and NVIDIA does not say that these
round alike.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.kernels.finding import Find, LaunchConfig, find_config
from pipeline.gpu.kernels.variant import ModelShape, Variant

DEPTH = 128
"""Inputs of a step of a sum."""
FEW_ROWS, SOME_ROWS = 16, 64
"""Up to SOME_ROWS time goes into reading weights, with more into products, and into reading x again for each
tile of outputs."""
Configs = Mapping[int, LaunchConfig]
"""By the most rows; 0: any number."""


@triton.jit
def store_outputs(acc, bias, out, row, output, num_rows, OUT: tl.constexpr):
    """acc [rows, outputs] + bias -> out [num_rows, OUT]."""
    if bias is not None:
        acc += tl.load(bias + output, mask=output < OUT, other=0.0).to(tl.float32)[None, :]
    at = row.to(tl.int64)[:, None] * OUT + output[None, :]
    mask = (row < num_rows)[:, None] & (output < OUT)[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=mask)


def config_for(
    kernel: str, configs: Configs, num_rows: int, num_outputs: int, device: torch.device
) -> LaunchConfig:
    """For [num_rows, in] inputs, as the GPU's file says."""
    most = rows_class(num_rows)
    return find_config(kernel, configs[most], device, outputs=num_outputs, max_rows=most)


def rows_class(num_rows: int) -> int:
    """The key of Configs."""
    return next((most for most in (FEW_ROWS, SOME_ROWS) if num_rows <= most), 0)


def grid_of(num_rows: int, num_outputs: int, config: LaunchConfig) -> tuple[int, int]:
    """Tiles of rows, which are next to one another in time and share a tile of weights, and of outputs."""
    constants = config.constants
    return triton.cdiv(num_rows, constants["ROWS"]), triton.cdiv(num_outputs, constants["COLUMNS"])


def check_input(x: Tensor, num_inputs: int) -> None:
    """Raises ValueError if x is not [T, num_inputs] with its elements side by side."""
    if x.dim() != 2 or x.shape[1] != num_inputs or x.stride(1) != 1:
        raise ValueError(f"x is {list(x.shape)} of strides {x.stride()}, not [T, {num_inputs}]")


def variants_of(
    kernel: Any, module: str, pointers: Mapping[str, str], shape: ModelShape, configs: Configs, find: Find
) -> list[Variant]:
    """Of every product, by the number of rows."""
    plain = Variant(
        name=f"{module.removeprefix('linear_')} {shape.name}",
        kernel=kernel,
        types={**pointers, "bias": "*bf16", "num_rows": "i32", "x_stride": "i32"},
        constants={"DEPTH": DEPTH},
        aligned=frozenset((*pointers, "x_stride")),
        config=LaunchConfig(),
        has_dot=True,
    )
    return [
        _sized(plain, name, most, find(module, default, outputs=shape.linears[name][1], max_rows=most), shape)
        for name in shape.linears
        for most, default in configs.items()
    ]


def _sized(plain: Variant, name: str, most: int, config: LaunchConfig, shape: ModelShape) -> Variant:
    has_bias = name == "qkv" and shape.has_qkv_bias
    num_inputs, num_outputs = shape.linears[name]
    return replace(
        plain,
        name=f"{plain.name} {name}, {f'up to {most}' if most else 'many'} rows",
        constants={
            **plain.constants,
            **({} if has_bias else {"bias": None}),
            "OUT": num_outputs,
            "IN": num_inputs,
            **config.constants,
        },
        aligned=plain.aligned | ({"bias"} if has_bias else set()),
        config=config,
    )
