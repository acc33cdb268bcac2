"""Attention over paged contexts: rows that decode, and rows of a prompt."""

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.gpu.api import StepInputs
from pipeline.gpu.kernels import attention_decode, attention_prefill
from pipeline.gpu.kernels.cache import Cache
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.paged import filled_cache, read_row, step_inputs, stored_row_bytes
from pipeline.gpu.kernels.workloads.workload import Workload, random, relative_error

TOLERANCE = 2e-2
"""bf16 rounds the probabilities, and the result."""


def decode(shape: ModelShape, num_rows: int, context: int, device: torch.device) -> Workload:
    """One query a row."""
    return _Attention(shape, num_rows, 1, context, device).workload("attention_decode")


def prefill(
    shape: ModelShape, num_rows: int, num_queries: int, context: int, device: torch.device
) -> Workload:
    """The last `num_queries` tokens of each context."""
    return _Attention(shape, num_rows, num_queries, context, device).workload("attention_prefill")


class _Attention:
    def __init__(
        self, shape: ModelShape, num_rows: int, num_queries: int, context: int, device: torch.device
    ) -> None:
        self.shape, self.num_rows, self.num_queries, self.context = shape, num_rows, num_queries, context
        self.inputs: StepInputs = step_inputs(num_rows, num_queries, context, shape.block_size, device)
        self.cache: Cache = filled_cache(shape, self.inputs.block_tables.numel(), device)
        self.q = random((num_rows * num_queries, shape.num_heads, shape.head_dim), device)
        self.out = torch.empty_like(self.q)
        self.scale = shape.head_dim**-0.5

    def workload(self, kernel: str) -> Workload:
        sizes = f"{self.num_rows} x {self.context}"
        if self.num_queries > 1:
            sizes = f"{self.num_rows} x {self.num_queries} of {self.context}"
        return Workload(
            kernel,
            f"{self.shape.name} {self.shape.kv_dtype} {sizes}",
            self.default(),
            {"head_dim": self.shape.head_dim, "kv_dtype": self.shape.kv_dtype},
            self.run,
            self.error,
            num_bytes=self._num_bytes(),
            num_flops=self._num_flops(),
            rival=self.rival() if self.num_queries in (1, self.context) else None,
            tolerance=TOLERANCE,
        )

    def default(self) -> LaunchConfig:
        shape = self.shape
        if self.num_queries == 1:
            return attention_decode.default_config(shape.head_dim, shape.kv_dtype)
        return attention_prefill.default_config(shape.head_dim, shape.kv_dtype)

    def run(self, config: LaunchConfig | None) -> None:
        is_decode = self.num_queries == 1
        launch = attention_decode.attention_decode if is_decode else attention_prefill.attention_prefill
        launch(self.q, self.cache, self.inputs, self.out, self.scale, config=config)

    def error(self, config: LaunchConfig | None) -> float:
        """Of the first row and the last."""
        self.out.fill_(torch.nan)
        self.run(config)
        return max(self._row_error(row) for row in {0, self.num_rows - 1})

    def _row_error(self, row: int) -> float:
        span = slice(row * self.num_queries, (row + 1) * self.num_queries)
        entries = torch.arange(self.context, device=self.q.device)
        k, v = (read_row(self.cache, side, self.inputs, row, self.context) for side in self.cache.kv)
        is_seen = entries[None, :] <= entries[-self.num_queries :, None]
        expected, _ = attend(self.q[span].float().transpose(0, 1), k, v, is_seen, self.scale)
        return relative_error(self.out[span], expected.transpose(0, 1))

    def rival(self) -> "_Sdpa":
        """Of torch, over bf16 keys and values that lie side by side."""
        return _Sdpa(self.shape, self.num_rows, self.num_queries, self.context, self.q.device)

    def _num_bytes(self) -> int:
        stored = 2 * self.shape.num_kv_heads * stored_row_bytes(self.shape) * self.context
        return self.num_rows * stored + 2 * 2 * self.q.numel()

    def _num_flops(self) -> int:
        n, heads = self.num_queries, self.shape.num_heads
        pairs = n * (self.context - n) + n * (n + 1) // 2
        return self.num_rows * 4 * heads * self.shape.head_dim * pairs


class _Sdpa:
    """scaled_dot_product_attention, by FlashAttention where torch so chooses. Inputs at the first call."""

    def __init__(
        self, shape: ModelShape, num_rows: int, num_queries: int, context: int, device: torch.device
    ) -> None:
        self._sizes = (
            (num_rows, shape.num_heads, num_queries, shape.head_dim),
            (num_rows, shape.num_kv_heads, context, shape.head_dim),
        )
        self._device, self._is_causal = device, num_queries > 1
        self._inputs: tuple[Tensor, Tensor, Tensor] | None = None

    def __call__(self) -> Tensor:
        if self._inputs is None:
            queries, keys = self._sizes
            self._inputs = (
                random(queries, self._device),
                random(keys, self._device),
                random(keys, self._device),
            )
        q, k, v = self._inputs
        return F.scaled_dot_product_attention(q, k, v, is_causal=self._is_causal, enable_gqa=True)


def attend(q: Tensor, k: Tensor, v: Tensor, is_seen: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """[H, n, D], [Hkv, entries, D] twice, [n, entries] -> [H, n, D] and probabilities, all fp32."""
    group = q.shape[0] // k.shape[0]
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    scores = (q @ k.transpose(1, 2) * scale).masked_fill_(~is_seen, -torch.inf)
    probs = torch.softmax(scores, -1)
    return probs @ v, probs
