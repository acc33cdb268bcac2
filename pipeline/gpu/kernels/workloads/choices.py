"""Sampling, over logits of rows that choose in different ways."""

import torch
from torch import Tensor

from pipeline.gpu.kernels import sampling
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.workload import Workload, random
from pipeline.gpu.sampling import SamplingOp, SamplingRows

TOLERANCE = 0.02
"""Share of the rows: a draw that falls between two tokens may be rounded to either."""


def sample(shape: ModelShape, num_rows: int, device: torch.device) -> Workload:
    """Greedy, of the whole vocabulary, of the top 50, of the top 90 %: a quarter each."""
    logits = 4 * random((num_rows, shape.vocab_size), device)
    rows = _rows(num_rows, device)

    def error(config: LaunchConfig | None) -> float:
        given, expected = sampling.sample(logits, rows, config), SamplingOp()(logits, rows)
        return (given != expected).float().mean().item()

    return Workload(
        "sampling",
        f"sampling {shape.name} {num_rows}",
        sampling.DEFAULT,
        {"vocab": shape.vocab_size},
        lambda config: sampling.sample(logits, rows, config),
        error,
        num_bytes=2 * logits.numel(),
        rival=lambda: SamplingOp()(logits, rows),
        tolerance=TOLERANCE,
    )


def _rows(num_rows: int, device: torch.device) -> SamplingRows:
    def repeated(*values: float) -> Tensor:
        return torch.tensor(values, device=device).repeat(-(-num_rows // len(values)))[:num_rows]

    numbers = torch.arange(num_rows, device=device)
    return SamplingRows(
        temperature=repeated(0.0, 0.8, 0.8, 1.0),
        top_k=repeated(0, 0, 50, 0).long(),
        top_p=repeated(1.0, 1.0, 1.0, 0.9),
        seed=numbers * 7919,
        position=numbers + 100,
    )
