"""Whether a row's attention has the same bits alone as among others (docs/decisions/0024)."""

from dataclasses import replace

import torch
from torch import Tensor

from pipeline.gpu.api import StepInputs
from pipeline.gpu.kernels.attention_decode import attention_decode
from pipeline.gpu.kernels.attention_prefill import attention_prefill
from pipeline.gpu.kernels.cache import Cache
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.paged import filled_cache, step_inputs
from pipeline.gpu.kernels.workloads.workload import random

NUM_ROWS = 5


def count_differences(shape: ModelShape, num_queries: int, context: int, device: torch.device) -> int:
    """Elements of one row's result that are others in a step of its own than in one of NUM_ROWS."""
    inputs = step_inputs(NUM_ROWS, num_queries, context, shape.block_size, device)
    cache = filled_cache(shape, inputs.block_tables.numel(), device)
    q = random((NUM_ROWS * num_queries, shape.num_heads, shape.head_dim), device)
    row = NUM_ROWS // 2
    tokens = slice(row * num_queries, (row + 1) * num_queries)
    alone = replace(
        inputs,
        query_start=inputs.query_start[:2],
        context_lens=inputs.context_lens[row : row + 1],
        block_tables=inputs.block_tables[row : row + 1].contiguous(),
    )
    among = _attend(q, cache, inputs)[tokens]
    return int((_attend(q[tokens].contiguous(), cache, alone) != among).sum())


def _attend(q: Tensor, cache: Cache, inputs: StepInputs) -> Tensor:
    out = torch.full_like(q, torch.nan)
    launch = attention_decode if inputs.max_queries == 1 else attention_prefill
    launch(q, cache, inputs, out, q.shape[-1] ** -0.5)
    return out
