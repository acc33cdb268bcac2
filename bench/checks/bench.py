"""What a part works with."""

from typing import NamedTuple

import torch

from bench.checks.rows import Rates
from pipeline.gpu.kernels.timing import Timer, Work, median_ms


class Bench(NamedTuple):
    """One machine, as a part sees it."""

    device: torch.device
    timer: Timer
    is_tiny: bool
    """In the interpreter, to find out whether the script runs at all: no time means anything."""
    rates: Rates

    def median_ms(self, work: Work) -> float:
        """Of several runs; tiny: of one."""
        return self.timer(work) if self.is_tiny else median_ms(work, self.timer)
