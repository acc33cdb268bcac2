"""Which modules of this package have kernels."""

import importlib
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from pipeline.errors import ConfigError
from pipeline.gpu.kernels.config import packaged_for
from pipeline.gpu.kernels.variant import ModelShape, Variant

KERNELS = (
    "attention_decode",
    "attention_prefill",
    "attention_mass",
    "rope_kv",
    "norm",
    "activation",
    "linear_int8",
    "linear_int4",
    "sampling",
    "token_mask",
    "penalties",
    "block_copy",
)
"""Each with `variants(shape)`."""


class Entry(NamedTuple):
    """A variant, and how to find it again in another process."""

    module: str
    shape: ModelShape
    number: int
    """In what `variants(shape)` of the module gives."""
    variant: Variant

    @property
    def identity(self) -> str:
        """The same for two that compile to the same code."""
        each = self.variant
        return repr(
            (
                self.module,
                each.kernel.__name__,
                each.types,
                each.constants,
                sorted(each.aligned),
                each.config,
            )
        )


def configured(entry: Entry, arch: int) -> Entry:
    """As GPUs of that architecture launch it by the files that come with the program, where they say so.

    Those files are asked for head_dim and kv_dtype: of a kernel that does not go by them they say nothing.
    """
    variant, packaged = entry.variant, packaged_for("", arch)
    features = {"head_dim": variant.constants.get("D", 0), "kv_dtype": variant.constants.get("KV", "")}
    config = packaged.find(entry.module, features) if packaged else None
    if config is None:
        return entry
    constants = {**variant.constants, **config.constants}
    return entry._replace(variant=replace(variant, config=config, constants=constants))


def entries(shapes: Iterable[ModelShape], kernels: Iterable[str] = KERNELS) -> list[Entry]:
    """All that models of these shapes launch, each compilation once. Raises ConfigError."""
    found: dict[str, Entry] = {}
    shapes = list(shapes)
    for module in check_names(kernels):
        for shape in shapes:
            for number, variant in enumerate(variants_of(module, shape)):
                entry = Entry(module, shape, number, variant)
                found.setdefault(entry.identity, entry)
    return list(found.values())


def variants_of(module: str, shape: ModelShape) -> list[Variant]:
    """What a model of that shape launches of one module's kernels."""
    variants: list[Variant] = importlib.import_module(f"pipeline.gpu.kernels.{module}").variants(shape)
    return variants


def check_names(kernels: Iterable[str]) -> list[str]:
    """These, all if there are none. Raises ConfigError."""
    names = list(kernels) or list(KERNELS)
    unknown = [name for name in names if name not in KERNELS]
    if unknown:
        raise ConfigError(f"no kernel is called {unknown[0]}; there are {', '.join(KERNELS)}")
    return names
