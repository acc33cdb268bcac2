"""The reference with what a captured decode step needs: rows that are empty write and read nothing."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.gpu.api import LayerKv, StepInputs
from pipeline.gpu.reference.ops import TorchOps
from pipeline.gpu.reference.tiles import TilePlan


class PaddedPlan(NamedTuple):
    tiles: TilePlan | None
    num_rows: int


class PaddedOps(TorchOps):
    """Empty rows are the last ones, and are all there may be."""

    def write_kv(self, k: Tensor, v: Tensor, kv: LayerKv, slot_mapping: Tensor) -> None:
        real = slot_mapping >= 0
        super().write_kv(k[real], v[real], kv, slot_mapping[real])

    def plan_attention(self, inputs: StepInputs) -> PaddedPlan:  # type: ignore[override]
        num_rows = int((inputs.context_lens > 0).sum())
        if num_rows == len(inputs.context_lens):
            return PaddedPlan(super().plan_attention(inputs), inputs.token_ids.shape[0])
        assert inputs.max_queries == 1 and not inputs.context_lens[num_rows:].any()
        assert inputs.sinks is not None and inputs.windows is not None, (
            "a graph is for rows with a window too"
        )
        real = replace(
            inputs,
            query_start=inputs.query_start[: num_rows + 1],
            context_lens=inputs.context_lens[:num_rows],
            block_tables=inputs.block_tables[:num_rows],
            sinks=inputs.sinks[:num_rows],
            windows=inputs.windows[:num_rows],
        )
        return PaddedPlan(super().plan_attention(real) if num_rows else None, num_rows)

    def attention(  # type: ignore[override]
        self, q: Tensor, kv: LayerKv, plan: PaddedPlan, scale: float, window: int = 0
    ) -> Tensor:
        out = torch.zeros(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype)
        if plan.tiles is not None:
            out[: plan.num_rows] = super().attention(q[: plan.num_rows], kv, plan.tiles, scale, window)
        return out
