"""Rotary position angles (Su et al. 2021), and the ways they are stretched past the trained length."""

import math

import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture, RopeScaling


class RopeTable:
    """cos and sin of every position, [max_position, 1, D / 2] fp32."""

    def __init__(self, architecture: Architecture, device: torch.device) -> None:
        positions = torch.arange(architecture.max_position, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(architecture))[:, None]
        self.cos = angles.cos().to(device)
        self.sin = angles.sin().to(device)

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[T] -> cos, sin [T, 1, D / 2]."""
        return self.cos[positions], self.sin[positions]


def inverse_frequencies(architecture: Architecture) -> Tensor:
    """[D / 2] fp32: theta^(-2 i / D), scaled."""
    dim = architecture.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    frequencies = 1.0 / architecture.rope_theta**exponents
    scaling = architecture.rope_scaling
    if scaling is None:
        return frequencies
    return frequencies / scaling.factor if scaling.kind == "linear" else _llama3(frequencies, scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    # Llama 3.1: long wavelengths are divided by the factor, short ones kept, those between blended
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies
