"""Rotary position angles (Su et al. 2021), and the ways they are stretched past the trained length."""

import math

import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture, RopeScaling
from pipeline.gpu.api import Rotation


class RopeTable:
    """cos and sin of every position, [max_position, 1, D / 2] fp32."""

    def __init__(
        self,
        head_dim: int,
        max_position: int,
        theta: float,
        scaling: RopeScaling | None,
        device: torch.device,
    ) -> None:
        positions = torch.arange(max_position, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(head_dim, theta, scaling))[:, None]
        self.cos = angles.cos().to(device)
        self.sin = angles.sin().to(device)

    def rows(self, positions: Tensor) -> Rotation:
        """[T] -> cos, sin [T, 1, D / 2]."""
        return self.cos[positions], self.sin[positions]


def rope_tables(architecture: Architecture, device: torch.device) -> list[RopeTable]:
    """Of every layer; layers that rotate alike share one."""
    arch = architecture

    def table(theta: float, scaling: RopeScaling | None) -> RopeTable:
        return RopeTable(arch.head_dim, arch.max_position, theta, scaling, device)

    every = table(arch.rope_theta, arch.rope_scaling)
    local = every if arch.local_rope_theta is None else table(arch.local_rope_theta, None)
    return [local if arch.window(layer) else every for layer in range(arch.num_layers)]


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """[D / 2] fp32: theta^(-2 i / D), scaled."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / theta**exponents
    if scaling is None:
        return frequencies
    return frequencies / scaling.factor if scaling.kind == "linear" else _llama3(frequencies, scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    # Llama 3.1: long wavelengths are divided by the factor, short ones kept, those between blended
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies
