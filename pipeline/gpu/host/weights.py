"""A checkpoint's tensors, packed one by one into one stretch of memory in the kernels' order (pack.h)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.host import library as abi
from pipeline.gpu.memory import huge_zeros
from pipeline.gpu.tensors import Shapes, checked

GROUP = 32
"""rows.h: widths are multiples of it."""
LANES, PANEL = 16, 32
LINE = 64
"""Bytes of a cache line, at whose start every weight begins."""
CHUNK_ROWS = 4096
"""Rows of a weight that are widened to fp32 at a time."""
EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"

_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


class Place(NamedTuple):
    """Where a tensor goes: which linear, and which of its outputs."""

    linear: str
    first: int
    is_interleaved: bool


@dataclass(slots=True)
class PackedLinear:
    """One linear's memory; the arrays are views of the arena, or small ones of their own."""

    width: int
    outputs: int
    weight: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32] | None
    bias: npt.NDArray[np.float32] | None

    def as_struct(self) -> abi.Linear:
        """Valid while this object lives."""
        return abi.Linear(
            address(self.weight), address(self.scales), address(self.bias), self.width, self.outputs
        )


class Arena:
    """One stretch of memory, handed out from its start."""

    def __init__(self, num_bytes: int) -> None:
        self._bytes = huge_zeros(num_bytes)
        self._used = 0

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        start, self._used = self._used, self._used + padded(num_bytes, LINE)
        return self._bytes[start : start + num_bytes]


class PackedWeights:
    """All weights of a Llama-like decoder: linears by name ("3.qkv", "head"), norms, and the embedding."""

    def __init__(
        self, architecture: Architecture, is_int8: bool, library: abi.HostLibrary, threads: int
    ) -> None:
        self.is_int8 = is_int8
        self._arch, self._library, self._threads = architecture, library, threads
        self._arena = Arena(_arena_bytes(architecture, is_int8))
        self.linears = {name: self._new(*size) for name, size in _sizes(architecture).items()}
        self.norms: dict[str, npt.NDArray[np.float32]] = {}
        self.embedding: Tensor | None = None
        """[V, C] bf16; None where it is the head's packed bf16 weight."""
        self._places = dict(_places(architecture))

    def fill(self, tensors: Iterable[tuple[str, Tensor]], expected: Shapes) -> None:
        """Take all tensors in. Raises ModelError naming those at fault."""
        for name, tensor in checked(tensors, expected):
            base, _, kind = name.rpartition(".")
            if kind == "weight" and tensor.dim() == 1:
                self.norms[name] = _padded_row(tensor, padded(tensor.shape[0], GROUP))
            elif kind == "bias":
                self._set_bias(self._places[base], tensor)
            else:
                self._set_weight(name, tensor)

    def _set_weight(self, name: str, tensor: Tensor) -> None:
        is_embedding = name == EMBEDDING
        if is_embedding and (self.is_int8 or not self._arch.tie_embeddings):
            self.embedding = tensor.to(torch.bfloat16).contiguous()
        if not is_embedding or self._arch.tie_embeddings:
            self._pack(
                Place("head", 0, False) if is_embedding else self._places[name[: -len(".weight")]], tensor
            )

    def _pack(self, place: Place, tensor: Tensor) -> None:
        linear = self.linears[place.linear]
        placement = abi.Placement(place.first, place.is_interleaved)
        for start in range(0, tensor.shape[0], CHUNK_ROWS):
            rows = tensor[start : start + CHUNK_ROWS].float().contiguous()
            self._library.pack(
                rows.data_ptr(), *rows.shape, start, linear.width, placement,
                address(linear.weight), address(linear.scales), self._threads,
            )  # fmt: skip

    def _set_bias(self, place: Place, tensor: Tensor) -> None:
        linear = self.linears[place.linear]
        if linear.bias is None:
            linear.bias = np.zeros(linear.outputs, np.float32)
        rows = np.arange(tensor.shape[0])
        interleaved = rows // LANES * PANEL + rows % LANES
        linear.bias[place.first + (interleaved if place.is_interleaved else rows)] = tensor.float().numpy()

    def _new(self, width: int, outputs: int) -> PackedLinear:
        weight = self._arena.take(width * outputs * (1 if self.is_int8 else 2))
        scales = np.zeros(outputs, np.float32) if self.is_int8 else None  # 0: outputs that only pad give 0
        return PackedLinear(width, outputs, weight, scales, None)


def padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def address(array: npt.NDArray[np.generic] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _padded_row(tensor: Tensor, width: int) -> npt.NDArray[np.float32]:
    row = np.zeros(width, np.float32)
    row[: tensor.shape[0]] = tensor.float().numpy()
    return row


def _sizes(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """(width, outputs) of every linear, padded; what one linear gives must fit what the next one takes."""
    hidden, inner = padded(architecture.hidden_size, GROUP), padded(architecture.intermediate_size, GROUP)
    attended = architecture.num_heads * architecture.head_dim
    qkv = attended + 2 * architecture.num_kv_heads * architecture.head_dim
    sizes = {"head": (hidden, padded(architecture.vocab_size, PANEL))}
    for i in range(architecture.num_layers):
        sizes[f"{i}.qkv"] = (hidden, padded(qkv, PANEL))
        sizes[f"{i}.output"] = (padded(attended, GROUP), hidden)
        sizes[f"{i}.gate_up"] = (hidden, 2 * inner)
        sizes[f"{i}.down"] = (inner, hidden)
    return sizes


def _arena_bytes(architecture: Architecture, is_int8: bool) -> int:
    return sum(
        padded(width * outputs * (1 if is_int8 else 2), LINE)
        for width, outputs in _sizes(architecture).values()
    )


def _places(architecture: Architecture) -> Iterator[tuple[str, Place]]:
    kv = architecture.num_kv_heads * architecture.head_dim
    firsts = {"qkv": (0, q := architecture.num_heads * architecture.head_dim, q + kv), "gate_up": (0, LANES)}
    yield "lm_head", Place("head", 0, False)
    for i in range(architecture.num_layers):
        for linear, parts in _PARTS.items():
            for part, first in zip(parts, firsts.get(linear, (0,)), strict=True):
                yield f"model.layers.{i}.{part}", Place(f"{i}.{linear}", first, linear == "gate_up")
