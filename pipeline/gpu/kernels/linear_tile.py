"""What the linears over stored codes have in common: tile sizes by rows, and how a result is stored.

DEPTH is one for all numbers of rows, so that a row's sum has the same steps in the same order among however
many (docs/decisions/0024). How a step of 16 is rounded is the tensor cores' affair: before sm_90 there is one
instruction; on sm_90 up to FEW_ROWS are multiplied by warps (HMMA), more by warp groups (HGMMA), and NVIDIA
does not say that these round alike.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.variant import ModelShape, Variant

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


def config_of(configs: Configs, num_rows: int) -> LaunchConfig:
    """For [num_rows, in] inputs."""
    return configs[next((most for most in (FEW_ROWS, SOME_ROWS) if num_rows <= most), 0)]


def grid_of(num_rows: int, num_outputs: int, config: LaunchConfig) -> tuple[int, int]:
    """Tiles of rows, which are next to one another in time and share a tile of weights, and of outputs."""
    constants = config.constants
    return triton.cdiv(num_rows, constants["ROWS"]), triton.cdiv(num_outputs, constants["COLUMNS"])


def check_input(x: Tensor, num_inputs: int) -> None:
    """Raises ValueError if x is not [T, num_inputs] with its elements side by side."""
    if x.dim() != 2 or x.shape[1] != num_inputs or x.stride(1) != 1:
        raise ValueError(f"x is {list(x.shape)} of strides {x.stride()}, not [T, {num_inputs}]")


def variants_of(
    kernel: Any, name: str, pointers: Mapping[str, str], shape: ModelShape, configs: Configs
) -> list[Variant]:
    """Of the feed-forward's way down, by the number of rows."""
    return [
        Variant(
            name=f"{name} {shape.name} {config.constants['ROWS']} rows",
            kernel=kernel,
            types={**pointers, "num_rows": "i32", "x_stride": "i32"},
            constants={
                "bias": None,
                "OUT": shape.hidden_size,
                "IN": shape.intermediate_size,
                **config.constants,
            },
            aligned=frozenset((*pointers, "x_stride")),
            config=config,
            has_dot=True,
        )
        for config in configs.values()
    ]
