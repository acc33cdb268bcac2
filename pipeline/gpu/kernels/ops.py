"""Ops of Triton's kernels; the embedding and linears that are not of codes are torch's (on CUDA cuBLAS).

Call kernels.interpreter.prepare before this module is imported.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.errors import ConfigError
from pipeline.gpu.api import KvFormat, LayerKv, Linear, Rotation, StepInputs
from pipeline.gpu.kernels.activation import gelu_and_mul, silu_and_mul
from pipeline.gpu.kernels.attention_decode import MAX_HEAD_DIM, attention_decode
from pipeline.gpu.kernels.attention_mass import attention_mass
from pipeline.gpu.kernels.attention_prefill import attention_prefill
from pipeline.gpu.kernels.cache import KV_BLOCK_DIM, Cache, kv_format
from pipeline.gpu.kernels.linear_int4 import BLOCK_KINDS, Int4Linear
from pipeline.gpu.kernels.linear_int8 import Int8Linear
from pipeline.gpu.kernels.norm import add_rms_norm, rms_norm
from pipeline.gpu.kernels.rope_kv import rope_and_write_kv
from pipeline.gpu.kv.dtype import GROUP, KvDtype, is_quantised
from pipeline.gpu.reference.linear import make_linear
from pipeline.gpu.weights.blocks import NO_KINDS, Blocks, Weight

MIN_HEAD_DIM = 16
"""The least that a matrix product of Triton adds up."""
WORD_CODES = 8
"""Codes are read by the word."""


class TritonOps:
    """Implements gpu.api.Ops; see there for shapes. Cache layout: see kernels.cache.

    What it launches goes by shapes and by StepInputs.max_queries, never by what tensors hold: a step can be
    captured in a graph.
    """

    kv_block_dim: ClassVar[int] = KV_BLOCK_DIM

    def __init__(
        self,
        device: torch.device,
        block_size: int,
        kv_dtype: KvDtype,
        weights: Literal["bf16", "int8", "int4"] = "bf16",
    ) -> None:
        self.block_kinds = BLOCK_KINDS if weights == "int4" else NO_KINDS
        self._device = device
        self._block_size = block_size
        self._kv_dtype: KvDtype = kv_dtype
        self._make_linear = Int8Linear if weights == "int8" else make_linear

    def kv_format(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> KvFormat:
        least = GROUP if self._kv_dtype == "int4" else MIN_HEAD_DIM
        multiple = WORD_CODES if is_quantised(self._kv_dtype) else 1
        if not least <= head_dim <= MAX_HEAD_DIM or head_dim % multiple:
            raise ConfigError(
                f'backend = "triton" has no attention for heads of {head_dim} with kv_dtype ='
                f' "{self._kv_dtype}": they must have {least} to {MAX_HEAD_DIM}'
                f'{f", a multiple of {multiple}" if multiple > 1 else ""}; set backend = "torch"'
            )
        return kv_format(num_blocks, block_size, num_kv_heads, head_dim, self._kv_dtype)

    def prepare_linear(self, weight: Weight, bias: Tensor | None) -> Linear:
        if isinstance(weight, Blocks):
            return Int4Linear(weight, bias, self._device)
        return self._make_linear(weight, bias)

    def embedding(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return F.embedding(token_ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return add_rms_norm(x, residual, weight, eps)

    def rope_and_write_kv(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, kv: LayerKv, slot_mapping: Tensor
    ) -> None:
        rope_and_write_kv(q, k, v, rotation, self._cache(kv, q), slot_mapping)

    def plan_attention(self, inputs: StepInputs) -> StepInputs:
        return inputs

    def attention(self, q: Tensor, kv: LayerKv, plan: StepInputs, scale: float, window: int = 0) -> Tensor:
        """Rows with one query go through the decode kernel, and if there may be others, they through the
        prefill kernel: neither touches the other's."""
        cache = self._cache(kv, q)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        attention_decode(q, cache, plan, out, scale, window)
        if plan.max_queries != 1:
            lse = attention_prefill(q, cache, plan, out, scale, window)
            if lse is not None:
                attention_mass(q, cache, plan, lse, scale, window)
        return out.flatten(1)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        return silu_and_mul(gate_up)

    def gelu_and_mul(self, gate_up: Tensor) -> Tensor:
        return gelu_and_mul(gate_up)

    def _cache(self, kv: LayerKv, q: Tensor) -> Cache:
        return Cache(kv, self._kv_dtype, self._block_size, q.shape[-1])
