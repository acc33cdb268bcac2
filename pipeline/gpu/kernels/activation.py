"""Gated activations: of [gate | up], the activation of gate times up.

    silu(x) = x / (1 + exp(-x))
    gelu(x) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)

The second is the tanh formula (Hendrycks & Gimpel 2016), for (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)).
gate_up [T, 2 F], bf16 or fp32, its last dimension contiguous; out [T, F] is new, contiguous, of its dtype. In
fp32, the activation rounded to the dtype before the product, as in reference.ops.
Bytes moved, in e bytes an element: 3 T F e; about 10 T F flops.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.kernels.finding import Find, LaunchConfig, find_config, keep_default
from pipeline.gpu.kernels.variant import ModelShape, Variant

DEFAULT = LaunchConfig(num_warps=4, num_stages=1, constants={"BLOCK": 1024})
"""8 elements a thread are one load of 16 bytes in bf16; small programs, so that a few rows of a decode step
are on all multiprocessors."""


@triton.jit
def gate_kernel(
    gate_up_ptr, out_ptr, row_stride, WIDTH: tl.constexpr, IS_GELU: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    places = gate_up_ptr + row * row_stride + columns
    gate = tl.load(places, mask=mask, other=0.0)
    up = tl.load(places + WIDTH, mask=mask, other=0.0)
    x = gate.to(tl.float32)
    two_u = 1.5957691216057308 * (x + 0.044715 * x * x * x)  # 2 sqrt(2 / pi)
    activated = (x / (1.0 + tl.exp(-(two_u if IS_GELU else x)))).to(gate.dtype)
    product = activated.to(tl.float32) * up.to(tl.float32)
    tl.store(out_ptr + row * WIDTH + columns, product.to(gate.dtype), mask=mask)


def silu_and_mul(gate_up: Tensor, config: LaunchConfig | None = None) -> Tensor:
    """[T, 2 F] -> [T, F]."""
    return _launch(gate_up, False, config)


def gelu_and_mul(gate_up: Tensor, config: LaunchConfig | None = None) -> Tensor:
    """[T, 2 F] -> [T, F]."""
    return _launch(gate_up, True, config)


def _launch(gate_up: Tensor, is_gelu: bool, config: LaunchConfig | None) -> Tensor:
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or gate_up.stride(1) != 1:
        raise ValueError(f"no gate and up in {list(gate_up.shape)} of strides {list(gate_up.stride())}")
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    config = config or find_config("activation", DEFAULT, gate_up.device, width=width)
    out = torch.empty(num_rows, width, dtype=gate_up.dtype, device=gate_up.device)
    gate_kernel[(num_rows, triton.cdiv(width, config.constants["BLOCK"]))](
        gate_up,
        out,
        gate_up.stride(0),
        WIDTH=width,
        IS_GELU=is_gelu,
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def variants(shape: ModelShape, find: Find = keep_default) -> list[Variant]:
    """Both activations."""
    config = find("activation", DEFAULT, width=shape.intermediate_size)
    return [
        Variant(
            name=f"{name} {shape.name}",
            kernel=gate_kernel,
            types={"gate_up_ptr": "*bf16", "out_ptr": "*bf16", "row_stride": "i32"},
            constants={"WIDTH": shape.intermediate_size, "IS_GELU": is_gelu, **config.constants},
            aligned=frozenset(("gate_up_ptr", "out_ptr", "row_stride")),
            config=config,
            max_registers=64,  # eight programs of 4 warps fill a multiprocessor's 64 Ki registers
        )
        for name, is_gelu in (("silu_and_mul", False), ("gelu_and_mul", True))
    ]
