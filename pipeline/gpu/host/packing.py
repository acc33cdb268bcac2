"""A checkpoint's tensors into packed weights, one by one; each is packed by all threads."""

import ctypes
from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.host import library as abi
from pipeline.gpu.host.formats import BLOCK_FORMATS, LANES, PANEL
from pipeline.gpu.host.layout import Place, places_of
from pipeline.gpu.host.weights import PackedLinear, PackedWeights
from pipeline.gpu.weights.blocks import Blocks, Weight, as_tensor
from pipeline.gpu.weights.tensors import Shapes, checked

CHUNK_ROWS = 4096
"""Rows of a weight that are widened to fp32 at a time."""


def fill(
    packed: PackedWeights,
    weights: Iterable[tuple[str, Weight]],
    architecture: Architecture,
    expected: Shapes,
    library: abi.HostLibrary,
    num_threads: int,
    on_tensor: Callable[[], None] = lambda: None,
) -> None:
    """Take all tensors in, into memory that is 0. Raises ModelError naming those at fault."""
    places = dict(places_of(architecture))
    for name, weight in checked(weights, expected):
        base, _, kind = name.rpartition(".")
        if kind == "bias":
            _set_bias(packed.linears[places[base].linear], places[base], as_tensor(weight))
        elif len(weight.shape) == 1:
            packed.norms[name][: weight.shape[0]] = as_tensor(weight).float().numpy()
        else:
            for place in _targets(places[base], architecture, packed):
                _pack(packed.linears[place.linear], place, weight, library, num_threads)
        on_tensor()


def _targets(place: Place, architecture: Architecture, packed: PackedWeights) -> list[Place]:
    """Tied embeddings are the head's weights too, and may be so alone."""
    places = [place]
    if place.linear == "embedding" and architecture.tie_embeddings:
        places.append(Place("head", 0, False))
    return [place for place in places if place.linear in packed.linears]


def _pack(
    linear: PackedLinear, place: Place, weight: Weight, library: abi.HostLibrary, num_threads: int
) -> None:
    struct, placement = linear.as_struct(), abi.Placement(place.first, place.is_interleaved)
    inputs = weight.shape[1]
    if isinstance(weight, Blocks) and _stays(weight, linear, place):
        library.pack_blocks(
            ctypes.byref(struct), weight.kind, weight.rows.ctypes.data, weight.shape[0], inputs, 0,
            placement, num_threads,
        )  # fmt: skip
        return
    for start in range(0, weight.shape[0], CHUNK_ROWS):
        rows = _rows(weight, start, start + CHUNK_ROWS)
        library.pack(ctypes.byref(struct), rows.data_ptr(), len(rows), inputs, start, placement, num_threads)


def _stays(weight: Blocks, linear: PackedLinear, place: Place) -> bool:
    """Whether the linear holds this weight's blocks as they are."""
    return bool(linear.panels["format"][place.first // PANEL] == BLOCK_FORMATS.get(weight.kind))


def _rows(weight: Weight, start: int, stop: int) -> Tensor:
    if isinstance(weight, Blocks):
        return weight.dequantised(start, stop)
    return weight[start:stop].float().contiguous()


def _set_bias(linear: PackedLinear, place: Place, tensor: Tensor) -> None:
    assert linear.bias is not None, "a layout has the biases that are expected"
    rows = np.arange(tensor.shape[0])
    interleaved = rows // LANES * PANEL + rows % LANES
    linear.bias[place.first + (interleaved if place.is_interleaved else rows)] = tensor.float().numpy()
