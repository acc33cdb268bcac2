"""How a kernel is launched on which GPU.

`configs/` has a file for each kind of GPU; one that `stageline tune-kernels` has written for this very GPU,
in $XDG_CACHE_HOME/stageline/kernels (~/.cache/... without that variable), goes first. A configuration goes by
the model and the GPU, never by how many rows a step has: it may set the order of sums, on which the bits of a
result depend (docs/decisions/0002). Where it cannot, as in kernels.linear_tile, it goes by a class of rows.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec

from pipeline.checkpoint.store import models_folder
from pipeline.errors import ConfigError

Feature: TypeAlias = int | str

PACKAGED = Path(__file__).parent / "configs"


class LaunchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """They change the time, and what `constants` says of the order of sums; nothing else."""

    num_warps: int = 4
    num_stages: int = 2
    constants: dict[str, int] = {}
    """Tile sizes, by the name of the kernel's constexpr argument."""


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One configuration of a kernel, and for which of its launches."""

    config: LaunchConfig
    why: str
    when: dict[str, Feature] = {}
    """Features that a launch must have, such as head_dim = 128; none: any."""

    def fits(self, features: Mapping[str, Feature]) -> bool:
        return self.when.items() <= features.items()


class GpuConfigs(msgspec.Struct, forbid_unknown_fields=True):
    """Those of one kind of GPU."""

    gpu: str
    source: str
    """Measured when and with what, or that it was not."""
    names: list[str]
    """Words of what CUDA calls such a GPU; and"""
    kernels: dict[str, list[Setting]]
    """by kernel. Of the settings that fit a launch the one with most features counts."""
    capabilities: list[int] = []
    """compute capabilities, times ten, of GPUs without a file of their own that are launched as this one."""

    def find(self, kernel: str, features: Mapping[str, Feature]) -> LaunchConfig | None:
        fitting = [setting for setting in self.kernels.get(kernel, []) if setting.fits(features)]
        return max(fitting, key=lambda setting: len(setting.when)).config if fitting else None

    def put(self, kernel: str, setting: Setting) -> None:
        """In the place of one for the same launches."""
        others = [each for each in self.kernels.get(kernel, []) if each.when != setting.when]
        self.kernels[kernel] = [*others, setting]


@cache
def load_configs(name: str, capability: int) -> tuple[GpuConfigs, ...]:
    """What is known of a GPU: what was measured on this machine, then what comes with the program.

    Args:
        name: as CUDA has it, "NVIDIA H100 80GB HBM3".
        capability: compute capability times ten.
    """
    own = saved_path(name)
    found = [read(own)] if own.is_file() else []
    packaged = packaged_for(name, capability)
    return (*found, packaged) if packaged else tuple(found)


def packaged_for(name: str, capability: int) -> GpuConfigs | None:
    """By name, else by capability."""
    files = [read(path) for path in sorted(PACKAGED.glob("*.json"))]
    named = (each for each in files if any(re.search(rf"\b{word}\b", name) for word in each.names))
    alike = (each for each in files if capability in each.capabilities)
    return next(named, None) or next(alike, None)


def read(path: Path) -> GpuConfigs:
    """Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=GpuConfigs)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} is no file of launch configurations: {error}") from error


def save(path: Path, configs: GpuConfigs) -> None:
    """In the place of what is there. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(configs)) + b"\n")
    draft.replace(path)


def saved_path(name: str) -> Path:
    """Where `stageline tune-kernels` writes what it has measured on a GPU of this name."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return models_folder().parent / "kernels" / f"{slug}.json"
