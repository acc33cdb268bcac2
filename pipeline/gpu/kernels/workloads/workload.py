"""What one launch of a kernel is to do, whether it did, and what it moves and computes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from pipeline.gpu.kernels.config import Feature, LaunchConfig

Run: TypeAlias = Callable[[LaunchConfig | None], object]


@dataclass(frozen=True)
class Workload:
    """Made by the builders of this package. Its inputs are on the device as long as it is kept."""

    kernel: str
    """As kernels.catalogue calls it."""
    name: str
    default: LaunchConfig
    """The kernel's own, which find_config may better; and"""
    features: Mapping[str, Feature]
    """what the launcher asks it for."""
    run: Run
    """Launch it, over and over if need be; None: as the launcher does by itself."""
    error: Callable[[LaunchConfig | None], float]
    """Launch it once on inputs of its own; -> relative_error of what it wrote."""
    num_bytes: int
    """Read and written, once each."""
    num_flops: int = 0
    """Of matrix products."""
    rival: Callable[[], object] | None = None
    """The same by torch, over contiguous inputs."""
    tolerance: float = 1e-2
    """Of `error`."""


def relative_error(given: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest expected magnitude; NaN counts as infinite."""
    difference = (given.double() - expected.double()).abs().max().item()
    largest = expected.double().abs().max().item()
    return difference / largest if difference == difference and largest > 0 else torch.inf


def random(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=device, dtype=torch.float32).to(dtype)
