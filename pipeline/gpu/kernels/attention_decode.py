"""Paged attention of rows with one query, split over the context (flash decoding; Dao et al. 2023)."""

from functools import cache as once
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.api import StepInputs
from pipeline.gpu.kernels.cache import Cache, scales_of
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.stored_tile import head_blocks, load_tile, load_token_scales
from pipeline.gpu.kv.dtype import is_quantised

DEFAULT = LaunchConfig(num_warps=4, num_stages=3, constants={"SPLIT": 512, "TILE": 32})
LOG2_E = 1.4426950408889634
MAX_PROGRAMS = 4096
MAX_COUNTERS = 1 << 16

MIN_ROWS = tl.constexpr(16)
ALL = tl.constexpr(1 << 30)
LEAST = tl.constexpr(1e-37)
COMBINED = tl.constexpr(4096)
MASS_ONE = tl.constexpr(4294967296.0)


@triton.jit
def what_is_seen(sinks, windows, row, layer_window):
    """How many first and how many last entries the row's query sees (api.StepInputs, api.Ops.attention)."""
    num_sinks = 0
    window = ALL
    if windows is not None:
        num_sinks = tl.load(sinks + row)
        window = tl.load(windows + row)
        window = tl.where(window == 0, ALL, window)
    if layer_window > 0:
        num_sinks = 0
        window = tl.minimum(window, layer_window)
    return num_sinks, window


@triton.jit
def seen_tiles(context_len, num_sinks, window, TILE: tl.constexpr):
    """Of the row's tiles: how many first ones are seen, how many next ones are not, how many are in all."""
    first_recent = tl.maximum(context_len - window, 0) // TILE
    num_first = tl.minimum(tl.cdiv(num_sinks, TILE), first_recent)
    num_hidden = first_recent - num_first
    return num_first, num_hidden, tl.cdiv(context_len, TILE) - num_hidden


@triton.jit
def attend_split(
    q,
    k,
    v,
    k_scales,
    v_scales,
    table,
    weights,
    kv_head,
    begin,
    end,
    num_first,
    num_hidden,
    context_len,
    num_sinks,
    window,
    scale,
    part_stride,
    KV: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    PART: tl.constexpr,
):
    """q [rows, WIDTH] -> softmax-weighted values, [rows, WIDTH], and log2 of what they weigh, [rows]."""
    num_rows: tl.constexpr = q.shape[0]
    maximum = tl.full([num_rows], float("-inf"), tl.float32)
    total = tl.zeros([num_rows], tl.float32)
    acc = tl.zeros([num_rows, WIDTH], tl.float32)
    for number in range(begin, end):
        tile = tl.where(number < num_first, number, number + num_hidden)
        entries = tile * TILE + tl.arange(0, TILE)
        is_recent = (entries >= context_len - window) & (entries < context_len)
        is_seen = is_recent | (entries < tl.minimum(num_sinks, context_len))
        blocks = head_blocks(table, entries, is_seen, kv_head, KV_HEADS, BLOCK_SIZE)
        keys = load_tile(k, k_scales, blocks, entries, is_seen, q, KV, D, WIDTH, BLOCK_SIZE)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
        if KV == "int8" or KV == "fp8":
            scores *= load_token_scales(k_scales, blocks, entries, is_seen, D, BLOCK_SIZE)[None, :]
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        probs = tl.exp2(scores - new_maximum[:, None])
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(probs, 1)
        if weights is not None:
            parts = tl.sum(probs.reshape(num_rows, TILE // PART, PART), 2)
            part = tile * (TILE // PART) + tl.arange(0, TILE // PART)
            group = tl.arange(0, num_rows)
            tl.store(
                weights + group[:, None] * part_stride + part[None, :],
                tl.log2(tl.maximum(parts, LEAST)) + new_maximum[:, None],
                mask=(group < GROUP)[:, None] & (part < part_stride)[None, :],
            )
        if KV == "int8" or KV == "fp8":
            probs *= load_token_scales(v_scales, blocks, entries, is_seen, D, BLOCK_SIZE)[None, :]
        values = load_tile(v, v_scales, blocks, entries, is_seen, q, KV, D, WIDTH, BLOCK_SIZE)
        acc = tl.dot(probs.to(q.dtype), values, acc * shrink[:, None], input_precision="ieee")
        maximum = new_maximum
    return acc / total[:, None], maximum + tl.log2(total)


@triton.jit
def combine(
    partial,
    lse,
    out,
    num_splits,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Add up the splits of a row's GROUP heads, in order."""
    chunk: tl.constexpr = COMBINED // (ROWS * WIDTH) if ROWS * WIDTH < COMBINED else 1
    head = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(0, num_splits, chunk):
        split = first + tl.arange(0, chunk)
        at = split[:, None] * HEADS + head[None, :]
        is_there = (split < num_splits)[:, None] & (head < GROUP)[None, :]
        weight = tl.load(lse + at, mask=is_there, other=float("-inf"))
        mask = is_there[:, :, None] & (column < D)[None, None, :]
        values = tl.load(partial + at[:, :, None] * D + column[None, None, :], mask=mask, other=0.0)
        new_maximum = tl.maximum(maximum, tl.max(weight, 0))
        new_maximum = tl.where(head < GROUP, new_maximum, 0.0)
        share = tl.exp2(weight - new_maximum[None, :])
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(share, 0)
        acc = acc * shrink[:, None] + tl.sum(values * share[:, :, None], 0)
        maximum = new_maximum
    is_element = (head < GROUP)[:, None] & (column < D)[None, :]
    total = tl.where(head < GROUP, total, 1.0)
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + head[:, None] * D + column[None, :], result, mask=is_element)


@triton.jit
def count_mass(
    mass,
    weights,
    lse,
    num_splits,
    context_len,
    num_sinks,
    window,
    part_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PART: tl.constexpr,
):
    """Add what a row's GROUP heads have attended to, in units of 2**-32, to its blocks."""
    head = tl.arange(0, ROWS)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for split in range(0, num_splits):
        weight = tl.load(lse + split * HEADS + head, mask=head < GROUP, other=0.0)
        new_maximum = tl.maximum(maximum, weight)
        total = total * tl.exp2(maximum - new_maximum) + tl.exp2(weight - new_maximum)
        maximum = new_maximum
    whole = maximum + tl.log2(total)
    chunk: tl.constexpr = 128
    for first in range(0, tl.cdiv(context_len, PART), chunk):
        part = first + tl.arange(0, chunk)
        is_recent = (part + 1) * PART > context_len - window
        is_seen = (part * PART < context_len) & (is_recent | (part * PART < num_sinks))
        mask = (head < GROUP)[:, None] & is_seen[None, :]
        weight = tl.load(
            weights + head[:, None] * part_stride + part[None, :], mask=mask, other=float("-inf")
        )
        units = tl.floor(tl.exp2(weight - whole[:, None]) * MASS_ONE + 0.5).to(tl.int64)
        tl.atomic_add(mass + part // (BLOCK_SIZE // PART), tl.sum(units, 0), mask=is_seen, sem="relaxed")


@triton.jit(do_not_specialize=["layer_window", "max_blocks", "max_splits", "part_stride"])
def decode_kernel(
    q,
    k,
    v,
    k_scales,
    v_scales,
    out,
    query_start,
    context_lens,
    tables,
    sinks,
    windows,
    mass,
    partial,
    lse,
    weights,
    arrived,
    scale,
    layer_window,
    q_stride,
    out_stride,
    max_blocks,
    max_splits,
    part_stride,
    KV: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
):
    heads: tl.constexpr = KV_HEADS * GROUP
    width: tl.constexpr = triton.next_power_of_2(D)
    rows: tl.constexpr = triton.next_power_of_2(GROUP)
    num_rows: tl.constexpr = MIN_ROWS if rows < MIN_ROWS else rows
    part: tl.constexpr = BLOCK_SIZE if BLOCK_SIZE < TILE else TILE
    tiles_in_split: tl.constexpr = SPLIT // TILE
    kv_head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    token = tl.load(query_start + row).to(tl.int64)
    if tl.load(query_start + row + 1) - token != 1:
        return
    context_len = tl.load(context_lens + row)
    num_sinks, window = what_is_seen(sinks, windows, row, layer_window)
    num_first, num_hidden, num_tiles = seen_tiles(context_len, num_sinks, window, TILE)
    num_splits = tl.cdiv(num_tiles, tiles_in_split)
    if tl.program_id(2) >= num_splits:
        return
    group = tl.arange(0, num_rows)
    column = tl.arange(0, width)
    is_element = (group < GROUP)[:, None] & (column < D)[None, :]
    place = (kv_head * GROUP + group)[:, None] * D + column[None, :]
    queries = tl.load(q + token * q_stride + place, mask=is_element, other=0.0)
    out_row = out + token * out_stride
    if weights is not None:
        weights += (row * heads + kv_head * GROUP) * part_stride
    for split in range(tl.program_id(2), num_splits, tl.num_programs(2)):
        begin = split * tiles_in_split
        end = tl.minimum(begin + tiles_in_split, num_tiles)
        result, weight = attend_split(
            queries,
            k,
            v,
            k_scales,
            v_scales,
            tables + row * max_blocks,
            weights,
            kv_head,
            begin,
            end,
            num_first,
            num_hidden,
            context_len,
            num_sinks,
            window,
            scale,
            part_stride,
            KV,
            KV_HEADS,
            GROUP,
            D,
            width,
            BLOCK_SIZE,
            TILE,
            part,
        )
        if lse is not None:
            at = (row * max_splits + split) * heads
            tl.store(lse + at + kv_head * GROUP + group, weight, mask=group < GROUP)
        if partial is None or num_splits == 1:
            tl.store(out_row + place, result.to(out.dtype.element_ty), mask=is_element)
        else:
            tl.store(partial + at * D + place, result, mask=is_element)
    is_last = num_splits == 1
    if lse is not None:
        tl.debug_barrier()
    if partial is not None and num_splits > 1:
        num_done = tl.cdiv(num_splits - tl.program_id(2), tl.num_programs(2))
        counter = arrived + row * KV_HEADS + kv_head
        before = tl.atomic_add(counter, num_done, sem="acq_rel")
        is_last = before + num_done == num_splits
        if is_last:
            tl.store(counter, 0)
            first = row * max_splits * heads + kv_head * GROUP
            combine(
                partial + first * D,
                lse + first,
                out_row + kv_head * GROUP * D,
                num_splits,
                heads,
                GROUP,
                rows,
                D,
                width,
            )
    if mass is not None and is_last:
        count_mass(
            mass + row * max_blocks,
            weights,
            lse + row * max_splits * heads + kv_head * GROUP,
            num_splits,
            context_len,
            num_sinks,
            window,
            part_stride,
            heads,
            GROUP,
            rows,
            BLOCK_SIZE,
            part,
        )


def attention_decode(
    q: Tensor,
    cache: Cache,
    inputs: StepInputs,
    out: Tensor,
    scale: float,
    window: int = 0,
    config: LaunchConfig | None = None,
) -> None:
    """Write to out [T, H, D] the attention of rows with one query, q [T, H, D]. Other rows are not touched,
    nor those of context 0."""
    config = config or DEFAULT
    split, tile = config.constants["SPLIT"], config.constants["TILE"]
    num_tokens, num_heads, head_dim = q.shape
    num_rows, max_blocks = inputs.block_tables.shape
    num_kv_heads = cache.num_kv_heads
    k, v = cache.kv
    k_scales, v_scales = (scales_of(k), scales_of(v)) if is_quantised(cache.kv_dtype) else (None, None)
    max_splits = -(-max_blocks * cache.block_size // split)
    parts = max_blocks * (cache.block_size // min(cache.block_size, tile))
    partial = lse = weights = arrived = None
    if max_splits > 1:
        partial = q.new_empty((num_rows, max_splits, num_heads, head_dim), dtype=torch.float32)
        arrived = _counters(q.device)
    if max_splits > 1 or inputs.mass is not None:
        lse = q.new_empty((num_rows, max_splits, num_heads), dtype=torch.float32)
    if inputs.mass is not None:
        weights = q.new_empty((num_rows, num_heads, parts), dtype=torch.float32)
    grid = (num_kv_heads, num_rows, min(max_splits, max(1, MAX_PROGRAMS // (num_rows * num_kv_heads))))
    kernel: Any = decode_kernel
    kernel[grid](
        q,
        k,
        v,
        k_scales,
        v_scales,
        out,
        inputs.query_start,
        inputs.context_lens,
        inputs.block_tables,
        inputs.sinks,
        inputs.windows,
        inputs.mass,
        partial,
        lse,
        weights,
        arrived,
        scale * LOG2_E,
        window,
        q.stride(0),
        out.stride(0),
        max_blocks,
        max_splits,
        parts,
        KV=cache.kv_dtype,
        KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        D=head_dim,
        BLOCK_SIZE=cache.block_size,
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


@once
def _counters(device: torch.device) -> Tensor:
    return torch.zeros(MAX_COUNTERS, dtype=torch.int32, device=device)
