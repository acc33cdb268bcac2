"""Paged causal attention of rows with several queries (FlashAttention-2, Dao 2023).

WORK IN PROGRESS DOCSTRING
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.api import StepInputs
from pipeline.gpu.kernels.cache import Cache
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kv.dtype import is_quantised

LOG2_E = 1.4426950408889634
LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1e30)
"""Where a row's maximum begins: finite, so that a tile of which a query sees nothing changes nothing."""
ALL = tl.constexpr(1 << 30)
"""The window of a row that sees all."""


@triton.jit
def find_row(query_start, num_rows, tile, TILE_QUERIES: tl.constexpr):
    """The row whose query tile this is: row b's begin at query_start[b] // TILE_QUERIES + b."""
    low = 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // TILE_QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def what_is_seen(sinks, windows, row, layer_window, HAS_ROW_WINDOWS: tl.constexpr):
    """How many first and how many last entries a query of the row sees, as gpu.api.StepInputs says."""
    num_sinks = 0
    window = ALL
    if HAS_ROW_WINDOWS:
        num_sinks = tl.load(sinks + row)
        window = tl.load(windows + row)
        window = tl.where(window == 0, ALL, window)
    if layer_window > 0:
        num_sinks = 0
        window = tl.minimum(window, layer_window)
    return num_sinks, window


@triton.jit
def block_offsets(table, entries, is_entry, block_stride, BLOCK_SIZE: tl.constexpr):
    """Where the entries' blocks begin; those that are none: in block 0."""
    ids = tl.load(table + entries // BLOCK_SIZE, mask=is_entry, other=0)
    return ids.to(tl.int64) * block_stride


@triton.jit
def load_tile(
    stored,
    scales,
    offsets,
    entries,
    is_entry,
    KV: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """[keys, WIDTH] of a head."""
    column = tl.arange(0, WIDTH)
    at = offsets + (entries % BLOCK_SIZE) * D
    is_read = (column < D)[None, :]
    if IS_MASKED:
        is_read = is_read & is_entry[:, None]
    if IS_MASKED or D < WIDTH:
        return tl.load(stored + at[:, None] + column[None, :], mask=is_read, other=0.0)
    return tl.load(stored + at[:, None] + column[None, :])


@triton.jit
def _attend(
    q,
    acc,
    total,
    maximum,
    query_entry,
    first,
    last,
    skipped_at,
    num_skipped,
    num_sinks,
    window,
    context_len,
    table,
    k,
    v,
    k_scales,
    v_scales,
    block_stride,
    scale,
    KV: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    IS_MASKED: tl.constexpr,
    IS_WINDOWED: tl.constexpr,
):
    for number in range(first, last):
        tile = number
        if IS_MASKED and IS_WINDOWED:
            tile = tl.where(number < skipped_at, number, number + num_skipped)
        entries = tile * TILE_KEYS + tl.arange(0, TILE_KEYS)
        is_entry = entries < context_len
        if IS_MASKED:
            ids = tl.load(table + entries // BLOCK_SIZE, mask=is_entry, other=0)
        else:
            ids = tl.load(table + entries // BLOCK_SIZE)
        offsets = ids.to(tl.int64) * block_stride
        keys = load_tile(k, k_scales, offsets, entries, is_entry, KV, D, WIDTH, BLOCK_SIZE, False)
        scores = tl.dot(q, tl.trans(keys.to(q.dtype)), input_precision="ieee")
        if IS_MASKED:
            is_seen = entries[None, :] <= query_entry[:, None]
            if IS_WINDOWED:
                is_recent = entries[None, :] > query_entry[:, None] - window
                is_seen = is_seen & (is_recent | (entries < num_sinks)[None, :])
            scores = tl.where(is_seen, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1) * scale)
        weights = tl.math.exp2(scores * scale - new_maximum[:, None])
        shrink = tl.math.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        values = load_tile(v, v_scales, offsets, entries, is_entry, KV, D, WIDTH, BLOCK_SIZE, IS_MASKED)
        acc = tl.dot(weights.to(q.dtype), values.to(q.dtype), acc, input_precision="ieee")
        maximum = new_maximum
    return acc, total, maximum


@triton.jit
def prefill_kernel(
    q,
    k,
    v,
    k_scales,
    v_scales,
    out,
    lse,
    tables,
    query_start,
    context_lens,
    sinks,
    windows,
    scale,
    layer_window,
    num_rows,
    max_blocks,
    q_stride,
    out_stride,
    block_stride,
    head_stride,
    KV: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_WINDOWED: tl.constexpr,
    HAS_ROW_WINDOWS: tl.constexpr,
    HAS_LSE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    TILE_QUERIES: tl.constexpr = TILE_ROWS // GROUP
    row = find_row(query_start, num_rows, tile, TILE_QUERIES)
    start = tl.load(query_start + row)
    num_queries = tl.load(query_start + row + 1) - start
    context_len = tl.load(context_lens + row)
    first_query = (tile - start // TILE_QUERIES - row) * TILE_QUERIES
    if num_queries < 2 or context_len == 0 or first_query >= num_queries:
        return
    lane = tl.arange(0, TILE_ROWS)
    query = first_query + lane // GROUP
    head = kv_head * GROUP + lane % GROUP
    column = tl.arange(0, WIDTH)
    is_query = (lane < TILE_QUERIES * GROUP) & (query < num_queries)
    token = (start + query).to(tl.int64)
    is_element = is_query[:, None] & (column < D)[None, :]
    queries = tl.load(
        q + token[:, None] * q_stride + head[:, None] * D + column[None, :], mask=is_element, other=0.0
    )
    first_entry = context_len - num_queries + first_query
    last_entry = tl.minimum(first_entry + TILE_QUERIES, context_len) - 1
    query_entry = first_entry + lane // GROUP
    acc = tl.zeros([TILE_ROWS, WIDTH], tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    maximum = tl.full([TILE_ROWS], LOWEST, tl.float32)
    table = tables + row.to(tl.int64) * max_blocks
    k += kv_head.to(tl.int64) * head_stride
    v += kv_head.to(tl.int64) * head_stride
    full_end = (first_entry + 1) // TILE_KEYS
    end = tl.cdiv(last_entry + 1, TILE_KEYS)
    full_begin = 0
    num_sinks = 0
    window = ALL
    if IS_WINDOWED:
        num_sinks, window = what_is_seen(sinks, windows, row, layer_window, HAS_ROW_WINDOWS)
        recent_begin = tl.maximum(first_entry - window + 1, 0) // TILE_KEYS
        sink_end = tl.minimum(tl.cdiv(num_sinks, TILE_KEYS), recent_begin)
        all_recent = tl.cdiv(tl.maximum(last_entry - window + 1, 0), TILE_KEYS)
        full_begin = tl.minimum(tl.maximum(all_recent, recent_begin), tl.maximum(full_end, recent_begin))
        num_skipped = recent_begin - sink_end
        acc, total, maximum = _attend(
            queries,
            acc,
            total,
            maximum,
            query_entry,
            0,
            full_begin - num_skipped,
            sink_end,
            num_skipped,
            num_sinks,
            window,
            context_len,
            table,
            k,
            v,
            k_scales,
            v_scales,
            block_stride,
            scale,
            KV,
            D,
            WIDTH,
            BLOCK_SIZE,
            TILE_KEYS,
            True,
            True,
        )
    acc, total, maximum = _attend(
        queries,
        acc,
        total,
        maximum,
        query_entry,
        full_begin,
        full_end,
        0,
        0,
        num_sinks,
        window,
        context_len,
        table,
        k,
        v,
        k_scales,
        v_scales,
        block_stride,
        scale,
        KV,
        D,
        WIDTH,
        BLOCK_SIZE,
        TILE_KEYS,
        False,
        IS_WINDOWED,
    )
    acc, total, maximum = _attend(
        queries,
        acc,
        total,
        maximum,
        query_entry,
        tl.maximum(full_begin, full_end),
        end,
        0,
        0,
        num_sinks,
        window,
        context_len,
        table,
        k,
        v,
        k_scales,
        v_scales,
        block_stride,
        scale,
        KV,
        D,
        WIDTH,
        BLOCK_SIZE,
        TILE_KEYS,
        True,
        IS_WINDOWED,
    )
    result = acc / total[:, None]
    tl.store(
        out + token[:, None] * out_stride + head[:, None] * D + column[None, :],
        result.to(out.dtype.element_ty),
        mask=is_element,
    )
    if HAS_LSE:
        num_heads = tl.num_programs(0) * GROUP
        value = (maximum + tl.math.log2(total)) * LN_2
        tl.store(lse + token * num_heads + head, value, mask=is_query)


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
    if is_quantised(cache.kv_dtype):
        raise NotImplementedError(cache.kv_dtype)
    num_tokens, num_heads, head_dim = q.shape
    config = config or default_config(head_dim, q.dtype)
    num_rows, max_blocks = inputs.block_tables.shape
    group = num_heads // cache.num_kv_heads
    tile_queries = config.constants["TILE_ROWS"] // group
    lse = None
    if inputs.mass is not None:
        lse = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=q.device)
    k, v = cache.kv
    grid = (cache.num_kv_heads, num_tokens // tile_queries + num_rows)
    kernel: Any = prefill_kernel
    kernel[grid](
        q,
        k,
        v,
        k,
        v,
        out,
        lse,
        inputs.block_tables,
        inputs.query_start,
        inputs.context_lens,
        inputs.sinks,
        inputs.windows,
        scale * LOG2_E,
        window,
        num_rows,
        max_blocks,
        q.stride(0),
        out.stride(0),
        k.stride(0),
        k.stride(1),
        KV=cache.kv_dtype,
        D=head_dim,
        WIDTH=triton.next_power_of_2(head_dim),
        GROUP=group,
        BLOCK_SIZE=cache.block_size,
        IS_WINDOWED=window > 0 or inputs.windows is not None,
        HAS_ROW_WINDOWS=inputs.windows is not None,
        HAS_LSE=lse is not None,
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return lse
