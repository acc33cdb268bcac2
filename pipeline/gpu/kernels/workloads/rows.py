"""Kernels that go over rows of activations: norms, gated activations, rope with the KV write."""

import torch
from torch import Tensor

from pipeline.gpu.kernels import activation, norm, rope_kv
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.paged import new_cache, read_slots, stored_row_bytes
from pipeline.gpu.kernels.workloads.workload import Workload, random, relative_error
from pipeline.gpu.reference.ops import TorchOps

EPS = 1e-5
BF16_BYTES = 2


def add_norm(shape: ModelShape, num_tokens: int, device: torch.device) -> Workload:
    """residual += x, and its norm."""
    size = (num_tokens, shape.hidden_size)
    x, residual = random(size, device), random(size, device)
    weight = random(size[1:], device)

    def error(config: LaunchConfig | None) -> float:
        copies = residual.clone(), residual.clone()
        given = norm.add_rms_norm(x.clone(), copies[0], weight, EPS, config)
        expected = _reference(device, shape).add_rms_norm(x.clone(), copies[1], weight, EPS)
        return max(relative_error(given, expected), relative_error(*copies))

    return Workload(
        "norm",
        f"add_norm {shape.name} {num_tokens}",
        norm.DEFAULT,
        {"width": shape.hidden_size},
        lambda config: norm.add_rms_norm(x, residual, weight, EPS, config),
        error,
        num_bytes=4 * BF16_BYTES * x.numel(),
    )


def gate(shape: ModelShape, num_tokens: int, device: torch.device) -> Workload:
    """silu(gate) * up."""
    gate_up = random((num_tokens, 2 * shape.intermediate_size), device)

    def error(config: LaunchConfig | None) -> float:
        expected = _reference(device, shape).silu_and_mul(gate_up)
        return relative_error(activation.silu_and_mul(gate_up, config), expected)

    return Workload(
        "activation",
        f"silu_and_mul {shape.name} {num_tokens}",
        activation.DEFAULT,
        {"width": shape.intermediate_size},
        lambda config: activation.silu_and_mul(gate_up, config),
        error,
        num_bytes=3 * BF16_BYTES * num_tokens * shape.intermediate_size,
    )


def rope(shape: ModelShape, num_tokens: int, device: torch.device) -> Workload:
    """Queries rotated, keys and values written."""
    num_blocks = -(-num_tokens // shape.block_size)
    cache = new_cache(shape, num_blocks, device)
    heads = shape.num_heads + 2 * shape.num_kv_heads
    qkv = random((num_tokens, heads, shape.head_dim), device)
    angles = torch.rand(num_tokens, 1, shape.head_dim // 2, device=device)
    slots = torch.randperm(num_blocks * shape.block_size, device=device)[:num_tokens]

    def run(config: LaunchConfig | None) -> None:
        q, k, v = _split(qkv, shape)
        rope_kv.rope_and_write_kv(q, k, v, (angles.cos(), angles.sin()), cache, slots, config)

    def error(config: LaunchConfig | None) -> float:
        given, expected = qkv.clone(), qkv.clone()
        rotation = angles.cos(), angles.sin()
        rope_kv.rope_and_write_kv(*_split(given, shape), rotation, cache, slots, config)
        rotated = rotate(expected, shape, rotation)
        k, v = (read_slots(cache, side, slots) for side in cache.kv)
        written = torch.cat((_split(given, shape)[0].float(), k, v), 1)
        return relative_error(written, rotated)

    stored = 2 * shape.num_kv_heads * stored_row_bytes(shape)
    moved = BF16_BYTES * shape.head_dim * (2 * shape.num_heads + 2 * shape.num_kv_heads)
    return Workload(
        "rope_kv",
        f"rope_kv {shape.name} {shape.kv_dtype} {num_tokens}",
        rope_kv.DEFAULT,
        {"head_dim": shape.head_dim, "kv_dtype": shape.kv_dtype},
        run,
        error,
        num_bytes=num_tokens * (stored + moved + 4 * shape.head_dim),
        tolerance=QUANTISED_TOLERANCE.get(shape.kv_dtype, 1e-2),
    )


QUANTISED_TOLERANCE = {"int8": 2e-2, "fp8": 8e-2, "int4": 2e-1}
"""Half a step of the codes, and what a last bit that differs before they are rounded makes of it."""


def rotate(qkv: Tensor, shape: ModelShape, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """[T, H + 2 Hkv, D] fp32: queries and keys rotated."""
    wide = qkv.float()
    first, second = wide[:, : -shape.num_kv_heads].chunk(2, -1)
    cos, sin = rotation
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return torch.cat((turned, wide[:, -shape.num_kv_heads :]), 1)


def _split(qkv: Tensor, shape: ModelShape) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.split(qkv, [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], 1)
    return q, k, v


def _reference(device: torch.device, shape: ModelShape) -> TorchOps:
    return TorchOps(device, shape.block_size, shape.kv_dtype)
