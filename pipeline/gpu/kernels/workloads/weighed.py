"""Attention of rows whose contexts are dropped from: sinks, windows, and how much each block weighs."""

from dataclasses import replace

import torch
from torch import Tensor

from pipeline.gpu.kernels import attention_decode, attention_mass, attention_prefill
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.attention import TOLERANCE, attend
from pipeline.gpu.kernels.workloads.paged import filled_cache, read_row, step_inputs
from pipeline.gpu.kernels.workloads.workload import Workload, random, relative_error

NUM_SINKS = 4
MASS_ONE = 2.0**32
"""StepInputs.mass: what a query head's whole attention counts."""


def weighed(
    shape: ModelShape, num_rows: int, num_queries: int, context: int, device: torch.device
) -> Workload:
    """Each query sees NUM_SINKS entries and the last half of its context; decode if there is one a row."""
    return _Weighed(shape, num_rows, num_queries, context, device).workload()


class _Weighed:
    def __init__(
        self, shape: ModelShape, num_rows: int, num_queries: int, context: int, device: torch.device
    ) -> None:
        self.shape, self.num_queries, self.context = shape, num_queries, context
        self.window = max(1, context // 2)
        plain = step_inputs(num_rows, num_queries, context, shape.block_size, device)
        self.inputs = replace(
            plain,
            sinks=torch.full_like(plain.context_lens, NUM_SINKS),
            windows=torch.full_like(plain.context_lens, self.window),
            mass=torch.zeros_like(plain.block_tables, dtype=torch.int64),
        )
        self.cache = filled_cache(shape, plain.block_tables.numel(), device)
        self.q = random((num_rows * num_queries, shape.num_heads, shape.head_dim), device)
        self.out = torch.empty_like(self.q)
        self.scale = shape.head_dim**-0.5
        self.lse = self._attend() if num_queries > 1 else None

    def workload(self) -> Workload:
        shape, is_decode = self.shape, self.num_queries == 1
        default = attention_mass.default_config(shape.head_dim)
        if is_decode:
            default = attention_decode.default_config(shape.head_dim, shape.kv_dtype)
        sizes = f"{len(self.inputs.context_lens)} x {self.num_queries} of {self.context}"
        return Workload(
            "attention_decode" if is_decode else "attention_mass",
            f"{shape.name} {shape.kv_dtype} {sizes}, weighed",
            default,
            {"head_dim": shape.head_dim, "kv_dtype": shape.kv_dtype},
            self.run,
            self.error,
            num_bytes=2 * 2 * self.q.numel(),
            tolerance=TOLERANCE,
        )

    def run(self, config: LaunchConfig | None) -> None:
        """Of rows with several queries after attention_prefill, which has been."""
        arguments = self.q, self.cache, self.inputs
        if self.lse is None:
            attention_decode.attention_decode(*arguments, self.out, self.scale, config=config)
        else:
            attention_mass.attention_mass(*arguments, self.lse, self.scale, config=config)

    def error(self, config: LaunchConfig | None) -> float:
        """Of the first row: what was attended to, and what its blocks weigh."""
        assert self.inputs.mass is not None
        self.inputs.mass.zero_()
        self.out.fill_(torch.nan)
        if self.lse is not None:
            self._attend()
        self.run(config)
        k, v = (read_row(self.cache, side, self.inputs, 0, self.context) for side in self.cache.kv)
        queries = self.q[: self.num_queries].float().transpose(0, 1)
        expected, probs = attend(queries, k, v, self._is_seen(), self.scale)
        found = self.inputs.mass[0].double() / MASS_ONE
        of_out = relative_error(self.out[: self.num_queries], expected.transpose(0, 1))
        return max(of_out, relative_error(found, self._of_blocks(probs)))

    def _attend(self) -> Tensor | None:
        """attention_prefill by its own configuration."""
        return attention_prefill.attention_prefill(self.q, self.cache, self.inputs, self.out, self.scale)

    def _is_seen(self) -> Tensor:
        entries = torch.arange(self.context, device=self.q.device)
        queries = entries[-self.num_queries :, None]
        is_recent = (entries > queries - self.window) | (entries < NUM_SINKS)
        return is_recent & (entries <= queries)

    def _of_blocks(self, probs: Tensor) -> Tensor:
        # [H, n, entries] -> [blocks]
        size, entries = self.cache.block_size, probs.sum((0, 1))
        padded = entries.new_zeros(self.inputs.block_tables.shape[1] * size)
        padded[: len(entries)] = entries
        return padded.view(-1, size).sum(1)
