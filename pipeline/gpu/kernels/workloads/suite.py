"""Which workloads a kernel is tuned and checked with."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import torch

from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.attention import decode, prefill
from pipeline.gpu.kernels.workloads.choices import sample
from pipeline.gpu.kernels.workloads.copies import copy
from pipeline.gpu.kernels.workloads.rows import add_norm, gate, rope
from pipeline.gpu.kernels.workloads.rules import mask, penalty
from pipeline.gpu.kernels.workloads.weighed import weighed
from pipeline.gpu.kernels.workloads.weights import int4, int8
from pipeline.gpu.kernels.workloads.workload import Workload


class Sizes(NamedTuple):
    """Of the steps that workloads are launches of."""

    tokens: tuple[int, ...]
    """Of a step, for kernels over rows."""
    decodes: tuple[tuple[int, int], ...]
    """Rows, and their context."""
    prefills: tuple[tuple[int, int, int], ...]
    """Rows, queries of each, and their context."""
    products: tuple[tuple[str, int], ...]
    """Linears over codes, by ModelShape.linears, and their rows."""


TUNED = Sizes(
    tokens=(64, 2048),
    decodes=((4, 4096), (64, 2048)),
    prefills=((1, 2048, 2048), (4, 512, 2048)),
    products=tuple((name, rows) for name in ("qkv", "output", "up", "down") for rows in (8, 64, 2048)),
)
CHECKED = Sizes(
    tokens=(1, 333),
    decodes=((1, 1), (3, 1000), (2, 5000)),
    prefills=((1, 700, 700), (2, 77, 900)),
    products=(("down", 1), ("down", 33), ("down", 333)),
)
TINY = Sizes(
    tokens=(3,), decodes=((2, 40),), prefills=((1, 20, 20),), products=(("qkv", 3), ("down", 3), ("down", 17))
)
"""For the interpreter."""

Builder: TypeAlias = Callable[[ModelShape, Sizes, torch.device], list[Workload]]


def _attend_decode(shape: ModelShape, sizes: Sizes, device: torch.device) -> list[Workload]:
    return [decode(shape, *each, device) for each in sizes.decodes]


def _attend_prefill(shape: ModelShape, sizes: Sizes, device: torch.device) -> list[Workload]:
    return [prefill(shape, *each, device) for each in sizes.prefills]


def _attend_weighed(shape: ModelShape, sizes: Sizes, device: torch.device) -> list[Workload]:
    decodes = [(num_rows, 1, context) for num_rows, context in sizes.decodes[-1:]]
    return [weighed(shape, *each, device) for each in (*decodes, *sizes.prefills[-1:])]


def _by_products(build: Callable[[ModelShape, str, int, torch.device], Workload]) -> Builder:
    return lambda shape, sizes, device: [build(shape, *each, device) for each in sizes.products]


def _by_tokens(build: Callable[[ModelShape, int, torch.device], Workload]) -> Builder:
    return lambda shape, sizes, device: [build(shape, tokens, device) for tokens in sizes.tokens]


BUILDERS: Mapping[str, Builder] = {
    "attention_decode": _attend_decode,
    "attention_prefill": _attend_prefill,
    "attention_mass": _attend_weighed,
    "norm": _by_tokens(add_norm),
    "activation": _by_tokens(gate),
    "rope_kv": _by_tokens(rope),
    "sampling": _by_tokens(sample),
    "token_mask": _by_tokens(mask),
    "penalties": _by_tokens(penalty),
    "linear_int8": _by_products(int8),
    "linear_int4": _by_products(int4),
    "block_copy": _by_tokens(copy),
}
"""By kernel."""


def build(kernel: str, shape: ModelShape, sizes: Sizes, device: torch.device) -> list[Workload]:
    """Of one kernel and one model."""
    return BUILDERS[kernel](shape, sizes, device)
