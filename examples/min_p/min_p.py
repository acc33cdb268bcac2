"""Min-p sampling (Nguyen et al. 2024, "Turning Up the Heat"): a token less probable than a fraction of the
most probable is never chosen, whatever the request's own top-k and top-p allow.

This is the device half of a sample stage and holds for every request of the server.
"""

from typing import ClassVar

import torch
from torch import Tensor

from pipeline.gpu.sampling import SamplingOp, SamplingRows


class MinPSampling(SamplingOp):
    min_p: ClassVar[float] = 0.1

    def is_filtered(self, rows: SamplingRows) -> Tensor:
        return torch.ones_like(rows.top_k, dtype=torch.bool)

    def num_kept(self, probs: Tensor, rows: SamplingRows) -> Tensor:
        likely = (probs >= self.min_p * probs[:, :1]).sum(-1)
        return torch.minimum(likely, super().num_kept(probs, rows))
