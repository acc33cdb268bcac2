"""Paged causal attention of rows with several queries (FlashAttention-2, Dao 2023).

WORK IN PROGRESS DOCSTRING
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.api import StepInputs
from pipeline.gpu.kernels.cache import Cache, scales_of
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.seen import what_is_seen
from pipeline.gpu.kernels.stored_tile import head_blocks, load_tile, load_token_scales
from pipeline.gpu.kv.dtype import is_quantised

LOG2_E = 1.4426950408889634
LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1e30)
"""Where a query's maximum begins: finite, so that a tile of which it sees nothing changes nothing."""


@triton.jit
def find_row(query_start, num_rows, tile, TILE_QUERIES: tl.constexpr):
    """Which row has this tile of queries, and its number among the row's: row b's begin at
    query_start[b] // TILE_QUERIES + b, so there is room for each row's last, which may not be full."""
    low = 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // TILE_QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    return low, tile - tl.load(query_start + low) // TILE_QUERIES - low


@triton.jit
def tile_ranges(first_entry, last_entry, num_sinks, window, TILE_KEYS: tl.constexpr):
    """Of the tiles of keys that queries at these entries see: where the recent ones begin, where all of a
    tile is seen by all queries, from begin to end, and where the last seen one ends; and how many of the
    first are seen for their sinks."""
    recent = tl.maximum(first_entry - window + 1, 0) // TILE_KEYS
    num_sink_tiles = tl.minimum(tl.cdiv(num_sinks, TILE_KEYS), recent)
    all_recent = tl.cdiv(tl.maximum(last_entry - window + 1, 0), TILE_KEYS)
    full_end = tl.maximum((first_entry + 1) // TILE_KEYS, recent)
    full_begin = tl.minimum(all_recent, full_end)
    return num_sink_tiles, recent, full_begin, full_end, tl.cdiv(last_entry + 1, TILE_KEYS)


@triton.jit(do_not_specialize=["layer_window", "num_rows", "max_blocks"])
def prefill_kernel(
    q,
    k,
    v,
    k_scales,
    v_scales,
    out,
    lse,
    query_start,
    context_lens,
    tables,
    sinks,
    windows,
    scale,
    layer_window,
    num_rows,
    max_blocks,
    q_stride,
    out_stride,
    KV: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_WINDOWED: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    """A program is one key/value head and a tile of a row's queries, the last tiles first: they are the
    longest. Its matrix rows are the queries' GROUP heads."""
    width: tl.constexpr = triton.next_power_of_2(D)
    tile_queries: tl.constexpr = TILE_ROWS // GROUP
    first_phase: tl.constexpr = 0 if IS_WINDOWED else 1
    kv_head = tl.program_id(0)
    row, tile = find_row(query_start, num_rows, tl.num_programs(1) - 1 - tl.program_id(1), tile_queries)
    start = tl.load(query_start + row)
    num_queries = tl.load(query_start + row + 1) - start
    context_len = tl.load(context_lens + row)
    first_query = tile * tile_queries
    if num_queries < 2 or context_len == 0 or first_query >= num_queries:
        return
    lane = tl.arange(0, TILE_ROWS)
    column = tl.arange(0, width)
    query = first_query + lane // GROUP
    is_query = (lane < tile_queries * GROUP) & (query < num_queries)
    is_element = is_query[:, None] & (column < D)[None, :]
    token = (start + query).to(tl.int64)
    head = kv_head * GROUP + lane % GROUP
    place = head[:, None] * D + column[None, :]
    queries = tl.load(q + token[:, None] * q_stride + place, mask=is_element, other=0.0)
    first_entry = context_len - num_queries + first_query
    last_entry = tl.minimum(first_entry + tile_queries, context_len) - 1
    query_entry = first_entry + lane // GROUP
    table = tables + row.to(tl.int64) * max_blocks
    if IS_WINDOWED:
        num_sinks, window = what_is_seen(sinks, windows, row, layer_window)
        num_sink_tiles, recent, full_begin, full_end, last_end = tile_ranges(
            first_entry, last_entry, num_sinks, window, TILE_KEYS
        )
    else:
        num_sink_tiles = 0
        recent = 0
        full_begin = 0
        full_end = (first_entry + 1) // TILE_KEYS
        last_end = tl.cdiv(last_entry + 1, TILE_KEYS)
    maximum = tl.full([TILE_ROWS], LOWEST, tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    acc = tl.zeros([TILE_ROWS, width], tl.float32)
    for phase in tl.static_range(first_phase, 3):
        if phase == 0:  # sinks, and where the window of some queries begins
            num_hidden = recent - num_sink_tiles
            begin = 0
            end = full_begin - num_hidden
        elif phase == 1:  # seen by all
            begin = full_begin
            end = full_end
        else:  # where the queries themselves are
            begin = full_end
            end = last_end
        entries = begin * TILE_KEYS + tl.arange(0, TILE_KEYS)
        if phase == 0:
            entries += tl.where(begin < num_sink_tiles, 0, num_hidden * TILE_KEYS)
        blocks = head_blocks(table, entries, entries < context_len, kv_head, KV_HEADS, BLOCK_SIZE)
        for number in range(begin, end):
            next_entries = (number + 1) * TILE_KEYS + tl.arange(0, TILE_KEYS)
            if phase == 0:
                next_entries += tl.where(number + 1 < num_sink_tiles, 0, num_hidden * TILE_KEYS)
            next_blocks = head_blocks(
                table, next_entries, next_entries < context_len, kv_head, KV_HEADS, BLOCK_SIZE
            )
            is_read = tl.full([TILE_KEYS], True, tl.int1)
            if phase != 1:
                is_read = entries < context_len
            keys = load_tile(k, k_scales, blocks, entries, is_read, queries, KV, D, width, BLOCK_SIZE)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
            if KV == "int8" or KV == "fp8":
                scores *= load_token_scales(k_scales, blocks, entries, is_read, D, BLOCK_SIZE)[None, :]
            if phase != 1:
                is_seen = entries[None, :] <= query_entry[:, None]
                if IS_WINDOWED:
                    is_recent = entries[None, :] > query_entry[:, None] - window
                    is_seen &= is_recent | (entries < num_sinks)[None, :]
                scores = tl.where(is_seen, scores, float("-inf"))
            new_maximum = tl.maximum(maximum, tl.max(scores, 1) * scale)
            probs = tl.exp2(scores * scale - new_maximum[:, None])
            shrink = tl.exp2(maximum - new_maximum)
            total = total * shrink + tl.sum(probs, 1)
            if KV == "int8" or KV == "fp8":
                probs *= load_token_scales(v_scales, blocks, entries, is_read, D, BLOCK_SIZE)[None, :]
            values = load_tile(v, v_scales, blocks, entries, is_read, queries, KV, D, width, BLOCK_SIZE)
            acc = tl.dot(probs.to(queries.dtype), values, acc * shrink[:, None], input_precision="ieee")
            maximum = new_maximum
            entries, blocks = next_entries, next_blocks
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + token[:, None] * out_stride + place, result, mask=is_element)
    if lse is not None:
        weight = (maximum + tl.log2(total)) * LN_2
        tl.store(lse + token * (KV_HEADS * GROUP) + head, weight, mask=is_query)


def default_config(head_dim: int, dtype: torch.dtype) -> LaunchConfig:
    if dtype == torch.float32:
        return LaunchConfig(4, 1, {"TILE_ROWS": 64, "TILE_KEYS": 32})
    return LaunchConfig(8, 3, {"TILE_ROWS": 128, "TILE_KEYS": 64 if head_dim > 64 else 128})


def attention_prefill(
    q: Tensor,
    cache: Cache,
    inputs: StepInputs,
    out: Tensor,
    scale: float,
    window: int = 0,
    config: LaunchConfig | None = None,
) -> Tensor | None:
    """q, out [T, H, D]; q may be strided in its first dimension."""
    if inputs.max_queries == 1:
        return None
    num_tokens, num_heads, head_dim = q.shape
    config = config or default_config(head_dim, q.dtype)
    num_rows, max_blocks = inputs.block_tables.shape
    group = num_heads // cache.num_kv_heads
    lse = None
    if inputs.mass is not None:
        lse = q.new_empty((num_tokens, num_heads), dtype=torch.float32)
    k, v = cache.kv
    k_scales, v_scales = map(scales_of, cache.kv) if is_quantised(cache.kv_dtype) else (None, None)
    grid = (cache.num_kv_heads, num_tokens // (config.constants["TILE_ROWS"] // group) + num_rows)
    kernel: Any = prefill_kernel
    kernel[grid](
        q,
        k,
        v,
        k_scales,
        v_scales,
        out,
        lse,
        inputs.query_start,
        inputs.context_lens,
        inputs.block_tables,
        inputs.sinks,
        inputs.windows,
        scale * LOG2_E,
        window,
        num_rows,
        max_blocks,
        q.stride(0),
        out.stride(0),
        KV=cache.kv_dtype,
        KV_HEADS=cache.num_kv_heads,
        GROUP=group,
        D=head_dim,
        BLOCK_SIZE=cache.block_size,
        IS_WINDOWED=window > 0 or inputs.windows is not None,
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return lse
