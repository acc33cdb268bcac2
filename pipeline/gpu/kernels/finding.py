"""Who says which configuration a launch gets: on a GPU find_config; where kernels are compiled ahead of time,
what `variants` of their modules are given.
"""

from functools import cache
from typing import Protocol

import torch

from pipeline.gpu.kernels.config import Feature, GpuConfigs, LaunchConfig, load_configs

__all__ = ["Find", "LaunchConfig", "find_config", "keep_default", "packaged_find"]


class Find(Protocol):
    """Which configuration launches with these features get: `default` where nothing says it."""

    def __call__(self, kernel: str, default: LaunchConfig, **features: Feature) -> LaunchConfig: ...


def find_config(
    kernel: str, default: LaunchConfig, device: torch.device, **features: Feature
) -> LaunchConfig:
    """How a launch with these features is best made on the device: `default` where no file says it.

    Raises ConfigError for a file that cannot be read. A call costs microseconds.
    """
    if device.type != "cuda":
        return default
    found = _find(kernel, device.index, tuple(features.items()))
    return default if found is None else found


@cache
def _find(kernel: str, index: int | None, features: tuple[tuple[str, Feature], ...]) -> LaunchConfig | None:
    name, (major, minor) = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
    configs = load_configs(name, 10 * major + minor)
    found = (each.find(kernel, dict(features)) for each in configs)
    return next((config for config in found if config is not None), None)


def keep_default(kernel: str, default: LaunchConfig, **features: Feature) -> LaunchConfig:
    """Implements Find."""
    return default


def packaged_find(configs: GpuConfigs | None) -> Find:
    """By one file alone, as on a GPU of its kind where nothing was measured."""

    def find(kernel: str, default: LaunchConfig, **features: Feature) -> LaunchConfig:
        found = configs.find(kernel, features) if configs else None
        return default if found is None else found

    return find
