"""The device half: min-p sampling (Nguyen et al. 2024, "Turning Up the Heat").

A token less probable than a fraction of the most probable is never chosen, whatever the request's own
top-k and top-p allow. It holds for every request of the server.
"""

import torch
from torch import Tensor

from examples.min_p.stage import MinPOptions
from pipeline.gpu.sampling import SamplingOp, SamplingRows


class MinPSampling(SamplingOp):
    def __init__(self, options: MinPOptions) -> None:
        super().__init__(options)
        self._min_p = options.min_p

    def is_filtered(self, rows: SamplingRows) -> Tensor:
        return torch.ones_like(rows.top_k, dtype=torch.bool)

    def num_kept(self, probs: Tensor, rows: SamplingRows) -> Tensor:
        likely = (probs >= self._min_p * probs[:, :1]).sum(-1)
        return torch.minimum(likely, super().num_kept(probs, rows))
