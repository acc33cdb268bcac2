"""Steps for decode attention, and what must come out of them by the words of gpu.api, in fp64."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.gpu.api import StepInputs
from pipeline.gpu.kv.dtype import KvDtype
from tests.kernels.guarded import guarded, poisoned
from tests.kernels.paged import Paged, paged

NOT_USED = torch.empty(0, dtype=torch.int64)
EVERYTHING = 1 << 40


@dataclass
class Case:
    """One launch; rows of 1 query unless said otherwise."""

    context_lens: list[int]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    kv_dtype: KvDtype = "fp32"
    dtype: str = "float32"
    block_size: int = 16
    num_queries: list[int] | None = None
    sinks: list[int] | None = None
    windows: list[int] | None = None
    layer_window: int = 0
    has_mass: bool = False
    split: int = 64
    tile: int = 32
    seed: int = 0

    def run(self) -> "Step":
        return Step(self)


class Step:
    """The inputs of a case, and what the kernel has made of them."""

    def __init__(self, case: Case) -> None:
        self.case, self.scale = case, case.head_dim**-0.5
        generator = torch.Generator().manual_seed(case.seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        shape = case.kv_heads, case.head_dim
        rows = [(random(n, *shape), random(n, *shape)) for n in case.context_lens]
        self.paged: Paged = paged(rows, case.kv_dtype, case.block_size, case.seed)
        self.edges = [0, *accumulate(case.num_queries or [1] * len(rows))]
        dtype = getattr(torch, case.dtype)
        wide = random(self.edges[-1], case.heads + 3, case.head_dim).to(dtype)
        self.q = guarded(wide)[:, : case.heads]  # as a part of one product of queries, keys and values
        self.out = poisoned((self.edges[-1], case.heads, case.head_dim), dtype)
        tables = self.paged.block_tables
        self.mass = guarded(torch.full(tables.shape, 3)) if case.has_mass else None
        self.launch()

    def launch(self) -> None:
        from pipeline.gpu.kernels.attention_decode import attention_decode
        from pipeline.gpu.kernels.config import LaunchConfig

        config = LaunchConfig(constants={"SPLIT": self.case.split, "TILE": self.case.tile})
        window = self.case.layer_window
        attention_decode(self.q, self.paged.cache, self.inputs(), self.out, self.scale, window, config)

    def inputs(self) -> StepInputs:
        case = self.case
        return StepInputs(
            token_ids=NOT_USED,
            positions=NOT_USED,
            slot_mapping=NOT_USED,
            query_start=_int32(self.edges),
            context_lens=guarded(self.paged.context_lens),
            block_tables=guarded(self.paged.block_tables),
            logits_rows=NOT_USED,
            sinks=None if case.sinks is None else _int32(case.sinks),
            windows=None if case.windows is None else _int32(case.windows),
            max_queries=max(case.num_queries or [1]),
            mass=self.mass,
        )

    def check(self, **tolerance: Any) -> None:
        """Every element that was to be written, and that no other was."""
        for row, context_len in enumerate(self.case.context_lens):
            out = self.out[self.edges[row] : self.edges[row + 1]]
            if len(out) != 1:
                assert bool(out.isnan().all()), "a row with several queries was written to"
                self._check_mass(row, None)
            elif context_len == 0:
                assert not out.any(), "a row without context is zeros"
                self._check_mass(row, None)
            else:
                probs = self._probabilities(row)
                expected = torch.einsum("hn,nhd->hd", probs, self._repeated(self.paged.values[row]))
                torch.testing.assert_close(out[0].double(), expected, **tolerance)
                self._check_mass(row, probs)

    def _repeated(self, x: Tensor) -> Tensor:
        return x.double().repeat_interleave(self.case.heads // self.case.kv_heads, 1)

    def _probabilities(self, row: int) -> Tensor:
        # [H, n]
        keys = self._repeated(self.paged.keys[row])
        scores = torch.einsum("hd,nhd->hn", self.q[self.edges[row]].double(), keys) * self.scale
        return scores.masked_fill(~self._is_seen(row, len(keys)), float("-inf")).softmax(-1)

    def _is_seen(self, row: int, n: int) -> Tensor:
        case = self.case
        num_sinks = case.sinks[row] if case.sinks and not case.layer_window else 0
        window = (case.windows[row] if case.windows else 0) or EVERYTHING
        window = min(window, case.layer_window or EVERYTHING)
        entries = torch.arange(n)
        return (entries < num_sinks) | (entries >= n - window)

    def _check_mass(self, row: int, probs: Tensor | None) -> None:
        if self.mass is None:
            return
        units = self.mass[row] - 3
        expected = torch.zeros(len(units), dtype=torch.float64)
        if probs is not None:
            size = self.case.block_size
            padded = F.pad(probs.sum(0), (0, len(units) * size - probs.shape[1]))
            expected = padded.view(-1, size).sum(1)
        are_keys_rounded = self.q.dtype == torch.bfloat16 and self.case.kv_dtype in ("fp32", "int4")
        tolerance = {"rtol": 1e-2, "atol": 1e-3} if are_keys_rounded else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(units.double() / 2**32, expected, **tolerance)


def _int32(values: list[int]) -> Tensor:
    return guarded(torch.tensor(values, dtype=torch.int32))
