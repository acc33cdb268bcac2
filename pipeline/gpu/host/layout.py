"""Where a model's packed weights lie in their memory: every linear by its panels (kernels/formats.h), every
norm and bias. A layout is made before the memory is, and kept beside it on disk.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.host.formats import BLOCK_FORMATS, GROUP, LANES, PANEL, Format
from pipeline.gpu.host.library import HostLibrary
from pipeline.gpu.weights.tensors import Shapes

LINE = 64
"""Bytes of a cache line, at whose start everything begins."""
EMBEDDING, HEAD, NORM = "model.embed_tokens", "lm_head", "model.norm.weight"

Choice: TypeAlias = Literal["bf16", "int8", "int4"]
"""int4: the file's own blocks, which are of 4 bits for the most part or not; the rest bf16."""


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


class Run(msgspec.Struct, frozen=True):
    """Neighbouring panels of one format."""

    format: Format
    num_panels: int
    at: int
    """Offset of the first, in bytes; the others follow."""


class LinearLayout(msgspec.Struct, frozen=True):
    """One linear. `bias_at` is the offset of [outputs] fp32."""

    width: int
    outputs: int
    runs: tuple[Run, ...]
    bias_at: int | None

    @property
    def takes_int8(self) -> bool:
        return self.runs[0].format != Format.BF16


class Vector(msgspec.Struct, frozen=True):
    """[size] fp32 from byte `at` on: a norm's weight, padded with 0."""

    at: int
    size: int


class Layout(msgspec.Struct, frozen=True):
    """Of all weights; `linears` by name: "3.qkv", "head", and "embedding" where that is not the head."""

    linears: dict[str, LinearLayout]
    vectors: dict[str, Vector]
    num_bytes: int

    @property
    def formats(self) -> str:
        """Those of the linears, by their share of the bytes: "q4_min + q8"."""
        panels = dict.fromkeys(run.format for linear in self.linears.values() for run in linear.runs)
        return " + ".join(each.name.lower() for each in sorted(panels, reverse=True))


def plan_layout(
    architecture: Architecture,
    expected: Shapes,
    kinds: Mapping[str, int],
    choice: Choice,
    library: HostLibrary,
) -> Layout:
    """Of a Llama-like decoder with the expected tensors, of which `kinds` are blocks."""
    places, sizes = dict(places_of(architecture)), _sizes(architecture)
    if architecture.tie_embeddings and choice != "int8":
        del sizes["embedding"]
    biased = {places[base].linear for name in expected if (base := name.removesuffix(".bias")) != name}
    end = 0

    def take(num_bytes: int) -> int:
        nonlocal end
        start, end = end, end + padded(num_bytes, LINE)
        return start

    def linear(name: str, width: int, outputs: int) -> LinearLayout:
        runs = tuple(
            Run(kind, count, take(count * library.panel_bytes(kind, width)))
            for kind, count in _formats(name, outputs, architecture, expected, kinds, choice)
        )
        return LinearLayout(width, outputs, runs, take(4 * outputs) if name in biased else None)

    linears = {name: linear(name, *size) for name, size in sizes.items()}
    vectors = {
        name: Vector(take(4 * padded(shape[0], GROUP)), padded(shape[0], GROUP))
        for name, shape in expected.items()
        if len(shape) == 1 and name.endswith(".weight")
    }
    return Layout(linears, vectors, end)


def places_of(architecture: Architecture) -> Iterator[tuple[str, Place]]:
    """By the tensor's name without ".weight" or ".bias". Tied embeddings have two places: see `targets`."""
    kv = architecture.num_kv_heads * architecture.head_dim
    firsts = {"qkv": (0, q := architecture.num_heads * architecture.head_dim, q + kv), "gate_up": (0, LANES)}
    yield EMBEDDING, Place("embedding", 0, False)
    yield HEAD, Place("head", 0, False)
    for i in range(architecture.num_layers):
        for linear, parts in _PARTS.items():
            for part, first in zip(parts, firsts.get(linear, (0,)), strict=True):
                yield f"model.layers.{i}.{part}", Place(f"{i}.{linear}", first, linear == "gate_up")


def padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _sizes(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """(width, outputs) of every linear, padded; what one linear gives must fit what the next one takes."""
    hidden, inner = padded(architecture.hidden_size, GROUP), padded(architecture.intermediate_size, GROUP)
    attended = architecture.num_heads * architecture.head_dim
    qkv = attended + 2 * architecture.num_kv_heads * architecture.head_dim
    sizes = {}
    for i in range(architecture.num_layers):
        sizes[f"{i}.qkv"] = (hidden, padded(qkv, PANEL))
        sizes[f"{i}.output"] = (padded(attended, GROUP), hidden)
        sizes[f"{i}.gate_up"] = (hidden, 2 * inner)
        sizes[f"{i}.down"] = (inner, hidden)
    sizes["head"] = sizes["embedding"] = (hidden, padded(architecture.vocab_size, PANEL))
    return sizes


def _formats(
    name: str,
    outputs: int,
    architecture: Architecture,
    expected: Shapes,
    kinds: Mapping[str, int],
    choice: Choice,
) -> list[tuple[Format, int]]:
    """A linear's panels: runs of (format, number).

    Blocks of several kinds stay what they are if each part is whole panels; else, and beside a part that is
    no block, the linear is bf16, since its inputs are one or the other.
    """
    panels = outputs // PANEL
    if choice != "int4":
        is_int8 = choice == "int8" and name != "embedding"
        return [(Format.INT8 if is_int8 else Format.BF16, panels)]
    parts = _parts(name, architecture)
    formats = [
        BLOCK_FORMATS.get(kinds[part], Format.BF16) if part in kinds else Format.BF16 for part in parts
    ]
    if len(set(formats)) == 1:
        return [(formats[0], panels)]
    counts = [expected[part][0] // PANEL for part in parts]
    is_whole = all(expected[part][0] % PANEL == 0 for part in parts[:-1])
    if Format.BF16 in formats or not is_whole or name.endswith("gate_up"):
        return [(Format.BF16, panels)]
    counts[-1] = panels - sum(counts[:-1])
    return list(zip(formats, counts, strict=True))


def _parts(name: str, architecture: Architecture) -> list[str]:
    """The tensors of a linear, in order."""
    if name in ("head", "embedding"):
        is_own = name == "head" and not architecture.tie_embeddings
        return [f"{HEAD if is_own else EMBEDDING}.weight"]
    layer, linear = name.split(".")
    return [f"model.layers.{layer}.{part}.weight" for part in _PARTS[linear]]
