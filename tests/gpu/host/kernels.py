"""The exported kernels over numpy arrays, each buffer of exactly the size it must have. Knows no torch, so
that it also runs under a sanitizer. bf16 is uint16, as in the kernels.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.gpu.host import library as abi
from pipeline.gpu.host.formats import Format
from pipeline.gpu.kv.dtype import SCALE_BYTES, KvDtype, code_bytes, num_scales

PANEL_DTYPE = np.dtype([("weight", np.uintp), ("format", np.int32), ("unused", np.int32)])
"""abi.Panel."""
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint16]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]

GROUP, PANEL, LANES, STRIP = 32, 32, 16, 16
THREADS = 2


def to_bf16(x: Floats) -> Words:
    """To nearest, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x: Words) -> Floats:
    return (x.astype(np.uint32) << 16).view(np.float32)


def padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


@dataclass
class Packed:
    """A weight as the kernels read it, and the struct that points to its parts."""

    weight: npt.NDArray[np.uint8]
    """Of 64-byte lines; the panels end where it ends."""
    panels: npt.NDArray[Any]
    bias: Floats | None
    struct: abi.Linear

    def unpacked(self, library: abi.HostLibrary) -> Floats:
        """[padded outputs, width] as they are computed with."""
        rows = np.empty((self.struct.outputs, self.struct.width), np.float32)
        for output, row in enumerate(rows):
            library.unpack(ctypes.byref(self.struct), output, pointer(row))
        return rows


def new_packed(
    library: abi.HostLibrary, inputs: int, formats: list[Format], bias: Floats | None = None
) -> Packed:
    """A linear of zeros with a panel of each of the formats."""
    width, outputs = padded(inputs, GROUP), PANEL * len(formats)
    ends = np.cumsum([library.panel_bytes(format, width) for format in formats])
    weight = aligned_zeros(int(ends[-1]))
    panels = np.zeros(len(formats), PANEL_DTYPE)
    panels["weight"] = pointer(weight) + np.array([0, *ends[:-1]], np.uintp)
    panels["format"] = formats
    whole_bias = None
    if bias is not None:
        whole_bias = np.zeros(outputs, np.float32)
        whole_bias[: bias.size] = bias
    takes_int8 = formats[0] != Format.BF16
    struct = abi.Linear(pointer(panels), pointer(whole_bias), width, outputs, takes_int8)
    return Packed(weight, panels, whole_bias, struct)


def aligned_zeros(size: int) -> npt.NDArray[np.uint8]:
    """From a line's start on, with nothing behind them."""
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return np.resize(memory, start + size)[start:] if start == 0 else memory[start : start + size]


def pack(
    library: abi.HostLibrary,
    weights: list[Floats],
    is_int8: bool,
    bias: Floats | None = None,
    interleave: bool = False,
) -> Packed:
    """One linear of the weights [outputs, inputs], one after another, or two of them interleaved."""
    rows = sum(weight.shape[0] for weight in weights)
    outputs = 2 * padded(weights[0].shape[0], GROUP) if interleave else padded(rows, PANEL)
    formats = [Format.INT8 if is_int8 else Format.BF16] * (outputs // PANEL)
    packed, first = new_packed(library, weights[0].shape[1], formats, bias), 0
    for number, part in enumerate(weights):
        part = np.ascontiguousarray(part, np.float32)
        place = abi.Placement(number * LANES if interleave else first, interleave)
        library.pack(ctypes.byref(packed.struct), pointer(part), *part.shape, 0, place, THREADS)
        first += part.shape[0]
    return packed


def pack_blocks(
    library: abi.HostLibrary,
    packed: Packed,
    kind: int,
    rows: npt.NDArray[np.uint8],
    inputs: int,
    first: int = 0,
) -> None:
    """Rows of a GGUF's blocks into the panels from output `first` on."""
    library.pack_blocks(
        ctypes.byref(packed.struct),
        kind,
        pointer(rows),
        len(rows),
        inputs,
        0,
        abi.Placement(first, 0),
        THREADS,
    )


def linear(library: abi.HostLibrary, packed: Packed, x: Floats) -> Floats:
    """[T, inputs] -> [T, padded outputs]."""
    return _apply(library.linear, packed, x, packed.struct.outputs)


def swiglu(library: abi.HostLibrary, packed: Packed, x: Floats) -> Floats:
    """[T, inputs] -> [T, padded outputs / 2]."""
    return _apply(library.swiglu, packed, x, packed.struct.outputs // 2)


def geglu(library: abi.HostLibrary, packed: Packed, x: Floats) -> Floats:
    """[T, inputs] -> [T, padded outputs / 2]."""
    return _apply(library.geglu, packed, x, packed.struct.outputs // 2)


@dataclass
class Rows:
    """A linear's input as the kernels multiply it; values are bf16 or int8."""

    values: npt.NDArray[Any]
    scales: Floats
    totals: Floats
    sums: Ints
    struct: abi.Rows


def new_rows(num_rows: int, width: int, is_int8: bool) -> Rows:
    values = np.empty((num_rows, width), np.int8 if is_int8 else np.uint16)
    scales, totals = (np.empty((num_rows, width // GROUP), np.float32) for _ in range(2))
    sums = np.empty((num_rows, width // LANES), np.int32)
    parts = (values, values, scales, totals, sums)
    return Rows(values, scales, totals, sums, abi.Rows(is_int8, width, *(pointer(part) for part in parts)))


def rows_of(library: abi.HostLibrary, x: Floats, is_int8: bool) -> Rows:
    """What becomes of [T, inputs], whole groups, before a linear."""
    packed = new_packed(library, x.shape[1], [Format.INT8 if is_int8 else Format.BF16])
    rows = new_rows(len(x), x.shape[1], is_int8)
    _call(library.linear, packed, rows, x, PANEL)
    return rows


def _apply(function: Any, packed: Packed, x: Floats, outputs: int) -> Floats:
    wide = np.zeros((len(x), packed.struct.width), np.float32)
    wide[:, : x.shape[1]] = x
    rows = new_rows(len(x), packed.struct.width, bool(packed.struct.is_int8))
    return _call(function, packed, rows, wide, outputs)


def _call(function: Any, packed: Packed, rows: Rows, x: Floats, outputs: int) -> Floats:
    out = np.empty((len(x), outputs), np.float32)
    structs = (ctypes.byref(packed.struct), ctypes.byref(rows.struct))
    function(*structs, pointer(x), len(x), pointer(out), THREADS)
    return out


@dataclass
class Cache:
    """A layer's keys and values, bytes of [blocks, heads, strips, a strip] each."""

    shape: abi.KvShape
    keys: Bytes
    values: Bytes


def new_cache(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, kv_dtype: KvDtype = "bf16"
) -> Cache:
    row = code_bytes(head_dim, kv_dtype) + SCALE_BYTES * num_scales(head_dim, kv_dtype)
    shape = (num_blocks, num_kv_heads, block_size // STRIP, STRIP * row)
    return Cache(
        abi.KvShape(num_kv_heads, head_dim, block_size, abi.CODES[kv_dtype]),
        np.zeros(shape, np.uint8),
        np.zeros(shape, np.uint8),
    )


def write_kv(
    library: abi.HostLibrary, cache: Cache, k: Floats, v: Floats, slots: npt.NDArray[np.int64]
) -> None:
    """k, v [T, Hkv, D]."""
    k, v = np.ascontiguousarray(k, np.float32), np.ascontiguousarray(v, np.float32)
    library.write_kv(
        ctypes.byref(cache.shape),
        pointer(k),
        pointer(v),
        pointer(slots),
        len(slots),
        pointer(cache.keys),
        pointer(cache.values),
    )


def attention(
    library: abi.HostLibrary,
    cache: Cache,
    q: Words,
    query_start: Ints,
    context_lens: Ints,
    block_tables: Ints,
    threads: int = THREADS,
    sinks: Ints | None = None,
    windows: Ints | None = None,
    mass: npt.NDArray[np.int64] | None = None,
    layer_window: int = 0,
    soft_cap: float = 0.0,
) -> Floats:
    """q [T, H, D] bf16 -> [T, H, D] fp32; adds to mass, of the block tables' shape."""
    num_heads, head_dim = q.shape[1:]
    heads = abi.Heads(cache.shape, num_heads, head_dim**-0.5, soft_cap)
    batch = abi.Batch(
        len(context_lens),
        block_tables.shape[1],
        pointer(query_start),
        pointer(context_lens),
        pointer(block_tables),
        pointer(sinks),
        pointer(windows),
        pointer(mass),
    )
    out = np.empty(q.shape, np.float32)
    library.attention(
        ctypes.byref(heads),
        ctypes.byref(batch),
        pointer(q),
        pointer(cache.keys),
        pointer(cache.values),
        pointer(out),
        layer_window,
        threads,
    )
    return out


def rms_norm(library: abi.HostLibrary, x: Floats, weight: Floats, eps: float) -> Floats:
    """One row [C]."""
    width = padded(x.size, GROUP)
    row, wide_weight, out = (np.zeros(width, np.float32) for _ in range(3))
    row[: x.size], wide_weight[: x.size] = x, weight
    library.rms_norm(pointer(row), pointer(wide_weight), x.size, width, eps, pointer(out))
    return out[: x.size]


def cap(library: abi.HostLibrary, x: Floats, limit: float) -> Floats:
    """One row, of a multiple of LANES."""
    out = np.array(x, np.float32)
    library.cap(pointer(out), out.size, limit)
    return out


def rope(library: abi.HostLibrary, x: Floats, cos: Floats, sin: Floats) -> Floats:
    """[heads, D], [D / 2] -> [heads, D]."""
    out = np.array(x, np.float32)
    library.rope(pointer(out), *out.shape, pointer(cos), pointer(sin))
    return out


def pointer(array: npt.NDArray[Any] | None) -> int | None:
    assert array is None or array.flags.c_contiguous
    return None if array is None else array.ctypes.data
