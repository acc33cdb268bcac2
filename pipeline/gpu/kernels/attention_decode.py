"""Paged attention of rows with one query, split over the context (flash decoding: Dao, Haziza, Massa & Sizov
2023). Rows with several queries are left alone: attention_prefill.

Shapes: q, out [T, H, D] bf16 or fp32, strided in their first dimension; the cache as kernels.cache says, of
any KvDtype; tables, context_lens, query_start, sinks, windows and mass as in api.StepInputs. D is at most
256, H a multiple of Hkv, block_size a power of two. A row of context 0 gets zeros, and reads nothing.

A program does splits of SPLIT entries of one row and one key/value head, of what the row's query sees; the
H / Hkv query heads are the rows of one matrix product, so a key is read once. The last program to be done
with a row adds its splits up: no second launch, and a row of one split has nothing to add up. Splits, tiles
and sums are of fixed size and order, so that a row's bits do not depend on the others, nor on the grid.

Read: 2 * context * Hkv stored rows of the cache, once each. Beside them 4 * H * D bytes for each split are
written and read once. Flops: 4 * context * H * D, in tensor cores as for at least 16 heads a group.
Scratch: rows * splits that the tables have room for * H * (D + 1) * 4 bytes, and where mass is asked for
rows * H * blocks * 4. An H100 is full from 528 programs on, rows * Hkv * context / SPLIT, 4 a multiprocessor.
Each has two or three tiles of 16 KB under way (of codes one, in registers): past the 30 KB a multiprocessor
that bandwidth times latency asks for.
"""

from functools import cache as once
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.api import StepInputs
from pipeline.gpu.kernels.attention_combine import combine, count_mass
from pipeline.gpu.kernels.attention_split import attend_split
from pipeline.gpu.kernels.cache import Cache, scales_of
from pipeline.gpu.kernels.finding import Find, LaunchConfig, find_config, keep_default
from pipeline.gpu.kernels.seen import seen_tiles, what_is_seen
from pipeline.gpu.kernels.variant import ModelShape, Variant, attention_constants, stored_type
from pipeline.gpu.kv.dtype import KvDtype, is_quantised

SPLIT = 512
"""Entries. So what a split writes, 4 H D bytes, is under 1 % of the keys and values that it reads."""
TILE_ELEMENTS = 4096
"""Of one tile of keys."""
LOG2_E = 1.4426950408889634
MAX_PROGRAMS = 4096
"""Past these a program does several splits: a table may have room for far more than its row has."""
MAX_COUNTERS = 1 << 16
MAX_HEAD_DIM = 256
MIN_ROWS = tl.constexpr(16)
"""Of a matrix product."""


@triton.jit(do_not_specialize=["layer_window", "max_blocks", "max_splits", "num_parts"])
def decode_kernel(
    q, k, v, k_scales, v_scales, out, query_start, context_lens, tables, sinks, windows, mass, partial, lse,
    weights, arrived, scale, layer_window, q_stride, out_stride, max_blocks, max_splits, num_parts,
    KV: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """On a grid [Hkv, B, programs]. Scratch, None where not needed: partial [B, max_splits, H, D], lse
    [B, max_splits, H], weights [B, H, num_parts], all fp32; arrived [B, Hkv] int32, zeros before and after.
    """
    HEADS: tl.constexpr = KV_HEADS * GROUP
    WIDTH: tl.constexpr = triton.next_power_of_2(D)
    ROWS: tl.constexpr = triton.next_power_of_2(GROUP)
    PART: tl.constexpr = min(BLOCK_SIZE, TILE)
    kv_head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    token = tl.load(query_start + row).to(tl.int64)
    if tl.load(query_start + row + 1) - token != 1:
        return
    group = tl.arange(0, max(ROWS, MIN_ROWS))
    column = tl.arange(0, WIDTH)
    is_element = (group < GROUP)[:, None] & (column < D)[None, :]
    element = (kv_head * GROUP + group)[:, None] * D + column[None, :]
    out += token * out_stride
    context_len = tl.load(context_lens + row)
    num_sinks, window = what_is_seen(sinks, windows, row, layer_window)
    num_first, num_hidden, num_tiles = seen_tiles(context_len, num_sinks, window, TILE)
    num_splits = tl.cdiv(num_tiles, SPLIT // TILE)
    first_split = tl.program_id(2)
    if first_split >= num_splits:
        if context_len == 0 and first_split == 0:
            zeros = tl.zeros([max(ROWS, MIN_ROWS), WIDTH], out.dtype.element_ty)
            tl.store(out + element, zeros, mask=is_element)
        return
    queries = tl.load(q + token * q_stride + element, mask=is_element, other=0.0)
    if weights is not None:
        weights += (row * HEADS + kv_head * GROUP) * num_parts
    if lse is not None:
        lse += row * max_splits * HEADS + kv_head * GROUP
    if partial is not None:
        partial += row * max_splits * HEADS * D
    for split in range(first_split, num_splits, tl.num_programs(2)):
        begin = split * (SPLIT // TILE)
        result, weight = attend_split(
            queries, k, v, k_scales, v_scales, tables + row * max_blocks, weights, kv_head, begin,
            tl.minimum(begin + SPLIT // TILE, num_tiles), num_first, num_hidden, context_len, num_sinks,
            window, scale, num_parts, KV, KV_HEADS, GROUP, D, WIDTH, BLOCK_SIZE, TILE, PART,
        )  # fmt: skip
        if lse is not None:
            tl.store(lse + split * HEADS + group, weight, mask=group < GROUP)
        if partial is None or num_splits == 1:
            tl.store(out + element, result.to(out.dtype.element_ty), mask=is_element)
        else:
            tl.store(partial + split * HEADS * D + element, result, mask=is_element)
    is_last = num_splits == 1
    if lse is not None:
        tl.debug_barrier()  # before others read what the threads of this program have written
    if partial is not None and num_splits > 1:
        counter = arrived + row * KV_HEADS + kv_head
        num_done = tl.cdiv(num_splits - first_split, tl.num_programs(2))
        is_last = tl.atomic_add(counter, num_done, sem="acq_rel") + num_done == num_splits
        if is_last:
            tl.store(counter, 0)
            first = kv_head * GROUP * D
            combine(partial + first, lse, out + first, num_splits, HEADS, GROUP, ROWS, D, WIDTH)
    if mass is not None and is_last:
        count_mass(
            mass + row * max_blocks, weights, lse, num_splits, context_len, num_sinks, window, num_parts,
            HEADS, GROUP, ROWS, PART, BLOCK_SIZE // PART,
        )  # fmt: skip


class Scratch(NamedTuple):
    """Of one launch: see decode_kernel."""

    partial: Tensor | None
    lse: Tensor | None
    weights: Tensor | None
    arrived: Tensor | None


def attention_decode(
    q: Tensor,
    cache: Cache,
    inputs: StepInputs,
    out: Tensor,
    scale: float,
    window: int = 0,
    config: LaunchConfig | None = None,
) -> None:
    """Write attention of the rows with one query to their tokens of out; see api.Ops.attention for window.

    Launches on one stream share counters.
    """
    _check(q, cache, inputs, out)
    config = config or config_for(q, cache)
    num_rows, max_blocks = inputs.block_tables.shape
    num_heads, num_kv_heads = q.shape[1], cache.num_kv_heads
    k, v = cache.kv
    has_scales = is_quantised(cache.kv_dtype)
    max_splits = _max_splits(max_blocks * cache.block_size, window, config)
    num_parts = max_blocks * (cache.block_size // min(cache.block_size, config.constants["TILE"]))
    programs = min(max_splits, max(1, MAX_PROGRAMS // (num_rows * num_kv_heads)))
    kernel: Any = decode_kernel
    kernel[(num_kv_heads, num_rows, programs)](
        q, k, v, scales_of(k) if has_scales else None, scales_of(v) if has_scales else None, out,
        inputs.query_start, inputs.context_lens, inputs.block_tables, inputs.sinks, inputs.windows,
        inputs.mass, *_scratch(q, num_rows, max_splits, num_parts, inputs.mass is not None), scale * LOG2_E,
        window, q.stride(0), out.stride(0), max_blocks, max_splits, num_parts, KV=cache.kv_dtype,
        KV_HEADS=num_kv_heads, GROUP=num_heads // num_kv_heads, D=cache.head_dim,
        BLOCK_SIZE=cache.block_size, **config.constants, num_warps=config.num_warps,
        num_stages=config.num_stages,
    )  # fmt: skip


def _max_splits(num_entries: int, window: int, config: LaunchConfig) -> int:
    """Of a row: the tables have room for so many entries, and a layer with a window sees a run of so many."""
    split, tile = config.constants["SPLIT"], config.constants["TILE"]
    if window:
        num_entries = min(num_entries, ((window + tile - 2) // tile + 1) * tile)
    return -(-num_entries // split)


def _scratch(q: Tensor, num_rows: int, max_splits: int, num_parts: int, has_mass: bool) -> Scratch:
    _, num_heads, head_dim = q.shape

    def new(is_needed: bool, *shape: int) -> Tensor | None:
        return torch.empty(num_rows, *shape, dtype=torch.float32, device=q.device) if is_needed else None

    return Scratch(
        partial=new(max_splits > 1, max_splits, num_heads, head_dim),
        lse=new(max_splits > 1 or has_mass, max_splits, num_heads),
        weights=new(has_mass, num_heads, num_parts),
        arrived=_counters(q.device, _stream(q.device)) if max_splits > 1 else None,
    )


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@once
def _counters(device: torch.device, stream: int) -> Tensor:
    return torch.zeros(MAX_COUNTERS, dtype=torch.int32, device=device)


def _check(q: Tensor, cache: Cache, inputs: StepInputs, out: Tensor) -> None:
    _, num_heads, head_dim = q.shape
    k, v = cache.kv
    if out.shape != q.shape or out.dtype != q.dtype or head_dim != cache.head_dim:
        raise ValueError(f"q is {q.shape} {q.dtype}, out {out.shape} {out.dtype}, keys of {cache.head_dim}")
    if any(x.stride()[1:] != (head_dim, 1) for x in (q, out)):
        raise ValueError(f"heads must lie side by side, strides are {q.stride()} and {out.stride()}")
    if head_dim > MAX_HEAD_DIM or num_heads % cache.num_kv_heads:
        raise ValueError(f"{num_heads} heads of {head_dim} over {cache.num_kv_heads}")
    if k.shape != v.shape or not (k.is_contiguous() and v.is_contiguous()):
        raise ValueError("keys and values must be contiguous, and alike")
    if cache.block_size & (cache.block_size - 1):
        raise ValueError(f"block_size {cache.block_size} is no power of two")
    if len(inputs.context_lens) * cache.num_kv_heads > MAX_COUNTERS:
        raise ValueError(f"{len(inputs.context_lens)} rows of {cache.num_kv_heads} heads are too many")


def config_for(q: Tensor, cache: Cache) -> LaunchConfig:
    """As the GPU's file says."""
    features = {"head_dim": cache.head_dim, "kv_dtype": cache.kv_dtype}
    default = default_config(cache.head_dim, cache.kv_dtype)
    return find_config("attention_decode", default, q.device, **features)


def default_config(head_dim: int, kv_dtype: KvDtype) -> LaunchConfig:
    """Tiles that 4 programs have room for on a multiprocessor of an H100, three each (of 256: 2 programs)."""
    width = triton.next_power_of_2(head_dim)
    is_large = width * (4 if kv_dtype == "fp32" else 2) > 256
    constants = {"SPLIT": SPLIT, "TILE": max(TILE_ELEMENTS // width, 32)}
    return LaunchConfig(num_warps=4, num_stages=3 if is_large else 4, constants=constants)


_WINDOWS, _MASS, _SPLITS = ("sinks", "windows"), ("mass", "weights"), ("partial", "lse", "arrived")


def variants(shape: ModelShape, find: Find = keep_default) -> list[Variant]:
    """Plain, with windows, with mass, and for tables of one split."""
    absent = {
        "": (*_WINDOWS, *_MASS),
        " windows": _MASS,
        " mass": _WINDOWS,
        " one split": (*_WINDOWS, *_MASS, *_SPLITS),
    }
    return [_variant(shape, find, suffix, names) for suffix, names in absent.items()]


_POINTERS = {
    "q": "*bf16",
    "out": "*bf16",
    "k_scales": "*bf16",
    "v_scales": "*bf16",
    **dict.fromkeys(("query_start", "context_lens", "tables", "sinks", "windows", "arrived"), "*i32"),
    "mass": "*i64",
    **dict.fromkeys(("partial", "lse", "weights"), "*fp32"),
}
_NUMBERS = ("layer_window", "q_stride", "out_stride", "max_blocks", "max_splits", "num_parts")


def _variant(shape: ModelShape, find: Find, suffix: str, absent: tuple[str, ...]) -> Variant:
    stored = stored_type(shape)
    pointers = _POINTERS | {"k": stored, "v": stored}
    absent += () if is_quantised(shape.kv_dtype) else ("k_scales", "v_scales")
    default = default_config(shape.head_dim, shape.kv_dtype)
    config = find("attention_decode", default, head_dim=shape.head_dim, kv_dtype=shape.kv_dtype)
    constants = attention_constants(shape, absent, config)
    return Variant(
        name=f"decode {shape.name} {shape.kv_dtype}{suffix}",
        kernel=decode_kernel,
        types={**pointers, "scale": "fp32", **dict.fromkeys(_NUMBERS, "i32")},
        constants=constants,
        aligned=frozenset({*pointers, "q_stride", "out_stride"} - set(absent)),
        config=config,
        max_registers=_max_registers(shape),
        has_dot=True,
    )


def _max_registers(shape: ModelShape) -> int:
    """For 4 programs a multiprocessor; 3 where codes are widened; 2 where a row is 256 wide."""
    if triton.next_power_of_2(shape.head_dim) > 128:
        return 255
    return 128 if shape.kv_dtype in ("bf16", "fp32") else 168
