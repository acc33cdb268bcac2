"""Which modules of this package have kernels."""

import importlib
from collections.abc import Iterable
from typing import NamedTuple

from pipeline.errors import ConfigError
from pipeline.gpu.kernels.config import packaged_for
from pipeline.gpu.kernels.finding import Find, packaged_find
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
"""Each with `variants(shape, find)`."""


class Entry(NamedTuple):
    """A variant, as GPUs of an architecture launch it, and how to find it again in another process."""

    module: str
    shape: ModelShape
    number: int
    """In what variants_of gives."""
    arch: int
    variant: Variant

    @property
    def identity(self) -> str:
        """The same for two that compile to the same code."""
        each = self.variant
        return repr(
            (
                self.module,
                self.arch,
                each.kernel.__name__,
                each.types,
                each.constants,
                sorted(each.aligned),
                each.config,
            )
        )


def entries(
    shapes: Iterable[ModelShape], archs: Iterable[int], kernels: Iterable[str] = KERNELS
) -> list[Entry]:
    """All that models of these shapes launch on such GPUs, each compilation once. Raises ConfigError."""
    found: dict[str, Entry] = {}
    modules, shapes = check_names(kernels), list(shapes)
    for arch in archs:
        for module in modules:
            for shape in shapes:
                for each in entries_of(module, shape, arch):
                    found.setdefault(each.identity, each)
    return list(found.values())


def entries_of(module: str, shape: ModelShape, arch: int) -> list[Entry]:
    """As the files that come with the program have it."""
    variants = variants_of(module, shape, packaged_find(packaged_for("", arch)))
    return [Entry(module, shape, number, arch, variant) for number, variant in enumerate(variants)]


def variants_of(module: str, shape: ModelShape, find: Find) -> list[Variant]:
    """What a model of that shape launches of one module's kernels, configured as `find` says."""
    owner = importlib.import_module(f"pipeline.gpu.kernels.{module}")
    variants: list[Variant] = owner.variants(shape, find)
    return variants


def check_names(kernels: Iterable[str]) -> list[str]:
    """These, all if there are none. Raises ConfigError."""
    names = list(kernels) or list(KERNELS)
    unknown = [name for name in names if name not in KERNELS]
    if unknown:
        raise ConfigError(f"no kernel is called {unknown[0]}; there are {', '.join(KERNELS)}")
    return names
