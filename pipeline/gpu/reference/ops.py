"""Ops in plain torch, on CPU or CUDA: what runs without compiled kernels, and the oracle for those."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.gpu.api import KvFormat, LayerKv, Linear, Rotation, StepInputs
from pipeline.gpu.kv.dtype import KvDtype, is_quantised
from pipeline.gpu.reference.attention import Cache, attend_decode, attend_prefill
from pipeline.gpu.reference.linear import make_linear
from pipeline.gpu.reference.quantise import quantise, row_bytes
from pipeline.gpu.reference.tiles import TilePlan, causal_mask
from pipeline.gpu.weights.blocks import NO_KINDS, Weight, as_tensor


class TorchOps:
    """Implements gpu.api.Ops; see there for shapes. Cache layout: see reference.attention."""

    kv_block_dim: ClassVar[int] = 1
    block_kinds = NO_KINDS

    def __init__(self, device: torch.device, block_size: int, kv_dtype: KvDtype) -> None:
        self._block_size = block_size
        self._kv_dtype: KvDtype = kv_dtype
        self._causal = causal_mask(device)

    def prepare_linear(self, weight: Weight, bias: Tensor | None) -> Linear:
        return make_linear(as_tensor(weight), bias)

    def embedding(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return F.embedding(token_ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (normed.to(weight.dtype) * weight).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.rms_norm(residual.add_(x), weight, eps)

    def rope_and_write_kv(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, kv: LayerKv, slot_mapping: Tensor
    ) -> None:
        for x in (q, k):
            rope(x, *rotation)
        self.write_kv(k, v, kv, slot_mapping)

    def kv_format(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> KvFormat:
        shape = num_kv_heads, num_blocks, block_size
        if is_quantised(self._kv_dtype):
            return KvFormat((*shape, row_bytes(head_dim, self._kv_dtype)), torch.uint8)
        return KvFormat((*shape, head_dim), torch.float32 if self._kv_dtype == "fp32" else torch.bfloat16)

    def write_kv(self, k: Tensor, v: Tensor, kv: LayerKv, slot_mapping: Tensor) -> None:
        """[T, Hkv, D] keys, rotated, and values to slot_mapping [T]."""
        for new, stored in zip((k, v), kv, strict=True):
            rows = quantise(new, self._kv_dtype) if is_quantised(self._kv_dtype) else new.to(stored.dtype)
            stored.flatten(1, 2).index_copy_(1, slot_mapping, rows.transpose(0, 1))

    def plan_attention(self, inputs: StepInputs) -> TilePlan:
        return TilePlan(inputs, self._block_size, self._causal)

    def attention(self, q: Tensor, kv: LayerKv, plan: TilePlan, scale: float, window: int = 0) -> Tensor:
        cache, tiles = Cache(kv, self._kv_dtype, plan.mass), plan.tiles(window)
        decode = tiles.decode
        if decode and not tiles.prefill:
            return attend_decode(q, cache, decode, scale).flatten(1)
        out = torch.empty_like(q)
        if decode:
            out[decode.tokens] = attend_decode(q[decode.tokens], cache, decode, scale)
        for row in tiles.prefill:
            attend_prefill(q, cache, row, scale, out)
        return out.flatten(1)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def gelu_and_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate [T, heads, D] in place."""
    first, second = x.float().chunk(2, dim=-1)
    x.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
