"""One compilation of a kernel: what the ahead-of-time check compiles, and what must hold for it.

Every module with a kernel has `variants(shape, find) -> list[Variant]`: what a model of that shape launches,
with the types, constants and launch parameters that its launcher gives, where `find` says what find_config
says to the launcher.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kv.dtype import KvDtype


class ModelShape(NamedTuple):
    """What a kernel's compilation depends on, of a model and of how it is run."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    block_size: int = 16
    kv_dtype: KvDtype = "bf16"
    """The model's own dtype is bf16."""
    has_qkv_bias: bool = False

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the products of a layer, and of the head."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "qkv": (self.hidden_size, queries + 2 * keys),
            "output": (queries, self.hidden_size),
            "up": (self.hidden_size, 2 * self.intermediate_size),
            "down": (self.intermediate_size, self.hidden_size),
            "head": (self.hidden_size, self.vocab_size),
        }


@dataclass(frozen=True)
class Variant:
    """A kernel with its constants bound."""

    name: str
    kernel: Any
    """triton.JITFunction."""
    types: dict[str, str]
    """Of each argument that is no constant, as Triton writes them: *bf16, i32, fp32."""
    constants: dict[str, Any]
    aligned: frozenset[str]
    """Arguments whose value is a multiple of 16."""
    config: LaunchConfig
    is_hot: bool = True
    """Runs in every layer of a step: nothing may spill."""
    max_registers: int = 255
    """A thread, and"""
    max_shared_bytes: int = 232_448
    """a program may use: what the occupancy that the kernel aims at leaves."""
    has_dot: bool = False
    """Tensor-core instructions must be there."""


def stored_type(shape: ModelShape) -> str:
    """Of a pointer to cached keys or values."""
    return {"bf16": "*bf16", "fp32": "*fp32"}.get(shape.kv_dtype, "*u8")


def attention_constants(shape: ModelShape, absent: Iterable[str], config: LaunchConfig) -> dict[str, Any]:
    """What all kernels of attention over a cache are compiled for; pointers that are `absent` are None."""
    return {
        **dict.fromkeys(absent),
        "KV": shape.kv_dtype,
        "KV_HEADS": shape.num_kv_heads,
        "GROUP": shape.num_heads // shape.num_kv_heads,
        "D": shape.head_dim,
        "BLOCK_SIZE": shape.block_size,
        **config.constants,
    }
