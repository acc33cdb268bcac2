"""Paged causal attention of rows with several queries: prompts, chunks of them, what follows a cached prefix
(FlashAttention-2: Dao 2023). Rows with one query are left alone: attention_decode.

Shapes: q, out [T, H, D] bf16 or fp32, strided in their first dimension; the cache as kernels.cache says, of
any KvDtype; tables, context_lens, query_start, sinks and windows as in api.StepInputs. D is at most 256, H a
multiple of Hkv, block_size a power of two. Rows of context 0 or of one query are neither read nor written.

A program does one key/value head and TILE_ROWS // G queries of a row; the G = H / Hkv query heads are rows
of the same matrix product, so a key is read once for all of them. There are T // queries a tile + B tiles,
known without asking the device; a program searches query_start for its own, and the last tiles, the longest,
go first. Keys come in tiles of TILE_KEYS entries, gathered by block id. Tiles that all queries see are
computed without masks, in a loop of their own; tiles that none sees are not read. Block ids, and the scales
of int8 and fp8, are read a tile ahead, so that the copies to shared memory wait for nothing.

Flops: 4 H D for each query and entry that it sees, in tensor cores. Read: for each tile of queries the
stored rows that it sees, from L2 as long as they fit there: for 128 rows 4 bytes of bf16 for each 512 flops,
so 16 bytes a cycle of an H100's multiprocessor at half its rate. Written: out, and where mass is asked for
4 H bytes a token.

A query's bits depend on its keys, the dtypes and the configuration, and on nothing else: its tiles of keys
lie at fixed entries and are added in order, and one of which it sees nothing changes nothing, be it computed
for its neighbours or not. So it has the same bits in any batch, and in any chunk of at least two queries. A
chunk of one query is decoded, in splits, and its last bits may be others than here.

Occupancy: one program of 8 warps on a multiprocessor, for 128 x 128 fp32 results are 64 registers a thread,
scores, probabilities and addresses as many again; its two warp groups take turns on the tensor cores.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.api import StepInputs
from pipeline.gpu.kernels.cache import Cache, scales_of
from pipeline.gpu.kernels.code_tile import dequantised, load_codes, load_scales
from pipeline.gpu.kernels.finding import Find, LaunchConfig, find_config, keep_default
from pipeline.gpu.kernels.seen import ALL, what_is_seen
from pipeline.gpu.kernels.stored_tile import head_blocks, load_tile
from pipeline.gpu.kernels.variant import ModelShape, Variant, attention_constants, stored_type
from pipeline.gpu.kv.dtype import KvDtype, is_quantised

LOG2_E = 1.4426950408889634
LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1e30)
"""Where a query's maximum begins: finite, so that a tile of which it sees nothing changes nothing."""
MAX_HEAD_DIM = 256


@triton.jit
def find_tile(query_start, num_rows, number, QUERIES: tl.constexpr):
    """-> row, and which of its tiles. Row b's begin at query_start[b] // QUERIES + b: each has room for its
    last, which may not be full."""
    low = 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // QUERIES + middle <= number:
            low = middle
        else:
            high = middle
    return low, number - tl.load(query_start + low) // QUERIES - low


@triton.jit
def windowed_tiles(first_entry, last_entry, num_sinks, window, KEYS: tl.constexpr):
    """Of the tiles of keys that queries at these entries see: how many first ones for their sinks, where the
    recent ones begin, and where those begin and end that every query sees as a whole."""
    recent = tl.maximum(first_entry - window + 1, 0) // KEYS
    num_first = tl.minimum(tl.cdiv(num_sinks, KEYS), recent)
    whole_end = tl.maximum((first_entry + 1) // KEYS, recent)
    whole_begin = tl.minimum(tl.cdiv(tl.maximum(last_entry - window + 1, 0), KEYS), whole_end)
    return num_first, recent, whole_begin, whole_end


@triton.jit(do_not_specialize=["layer_window", "num_rows", "max_blocks"])
def prefill_kernel(
    q, k, v, k_scales, v_scales, out, lse, query_start, context_lens, tables, sinks, windows, scale,
    layer_window, num_rows, max_blocks, q_stride, out_stride, KV: tl.constexpr, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, IS_WINDOWED: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr,
):  # fmt: skip
    """q, k, v: see attention_prefill; scale times log2(e); lse [T, H] fp32 or None. IS_WINDOWED: there may be
    a window, of a row or of the layer."""
    WIDTH: tl.constexpr = triton.next_power_of_2(D)
    QUERIES: tl.constexpr = TILE_ROWS // GROUP
    kv_head = tl.program_id(0)
    row, tile = find_tile(query_start, num_rows, tl.num_programs(1) - 1 - tl.program_id(1), QUERIES)
    start = tl.load(query_start + row)
    num_queries = tl.load(query_start + row + 1) - start
    context_len = tl.load(context_lens + row)
    first_query = tile * QUERIES
    if num_queries < 2 or context_len == 0 or first_query >= num_queries:
        return
    lane = tl.arange(0, TILE_ROWS)
    column = tl.arange(0, WIDTH)
    query = first_query + lane // GROUP
    is_query = (lane < QUERIES * GROUP) & (query < num_queries)
    is_element = is_query[:, None] & (column < D)[None, :]
    token = (start + query).to(tl.int64)
    head = kv_head * GROUP + lane % GROUP
    element = head[:, None] * D + column[None, :]
    queries = tl.load(q + token[:, None] * q_stride + element, mask=is_element, other=0.0)
    table = tables + row.to(tl.int64) * max_blocks
    first_entry = context_len - num_queries + first_query
    last_entry = tl.minimum(first_entry + QUERIES, context_len) - 1
    query_entry = first_entry + lane // GROUP
    whole_begin = 0
    whole_end = (first_entry + 1) // TILE_KEYS
    last_end = tl.cdiv(last_entry + 1, TILE_KEYS)
    if IS_WINDOWED:
        num_sinks, window = what_is_seen(sinks, windows, row, layer_window)
        num_first, recent, whole_begin, whole_end = windowed_tiles(
            first_entry, last_entry, num_sinks, window, TILE_KEYS
        )
    maximum = tl.full([TILE_ROWS], LOWEST, tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    acc = tl.zeros([TILE_ROWS, WIDTH], tl.float32)
    for part in tl.static_range(0 if IS_WINDOWED else 1, 3):
        if part == 0:  # sinks, and where windows begin
            num_hidden = recent - num_first
            begin = 0
            end = whole_begin - num_hidden
        elif part == 1:  # what all queries see
            begin = whole_begin
            end = whole_end
        else:  # where the queries are
            begin = whole_end
            end = last_end
        entries = begin * TILE_KEYS + tl.arange(0, TILE_KEYS)
        if part == 0:
            entries += tl.where(begin < num_first, 0, num_hidden * TILE_KEYS)
        is_entry = entries < context_len
        blocks = head_blocks(table, entries, is_entry, kv_head, KV_HEADS, BLOCK_SIZE)
        k_codes = load_codes(k, blocks, entries, is_entry, KV, D, WIDTH, BLOCK_SIZE)
        v_codes = load_codes(v, blocks, entries, is_entry, KV, D, WIDTH, BLOCK_SIZE)
        of_keys = load_scales(k_scales, blocks, entries, is_entry, KV, D, WIDTH, BLOCK_SIZE)
        of_values = load_scales(v_scales, blocks, entries, is_entry, KV, D, WIDTH, BLOCK_SIZE)
        for number in range(begin, end):
            next_entries = (number + 1) * TILE_KEYS + tl.arange(0, TILE_KEYS)
            if part == 0:
                next_entries += tl.where(number + 1 < num_first, 0, num_hidden * TILE_KEYS)
            next_is_entry = next_entries < context_len
            next_blocks = head_blocks(table, next_entries, next_is_entry, kv_head, KV_HEADS, BLOCK_SIZE)
            is_read = tl.full([TILE_KEYS], True, tl.int1) if part == 1 else entries < context_len
            if KV == "bf16" or KV == "fp32":
                keys = load_tile(k, blocks, entries, is_read, queries, D, WIDTH, BLOCK_SIZE)
            else:
                keys = dequantised(k_codes, of_keys, queries, KV, WIDTH)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
            if part != 1:
                distance = query_entry[:, None] - entries[None, :]
                if IS_WINDOWED:
                    reach = tl.where(entries < num_sinks, ALL, window)
                    is_seen = distance.to(tl.uint32) < reach.to(tl.uint32)[None, :]  # nor is it later
                else:
                    is_seen = distance >= 0
                scores = tl.where(is_seen, scores, float("-inf"))
            new_maximum = tl.maximum(maximum, tl.max(scores, 1) * scale)
            probs = tl.exp2(scores * scale - new_maximum[:, None])
            shrink = tl.exp2(maximum - new_maximum)
            total = total * shrink + tl.sum(probs, 1)
            if KV == "bf16" or KV == "fp32":
                values = load_tile(v, blocks, entries, is_read, queries, D, WIDTH, BLOCK_SIZE)
            else:
                values = dequantised(v_codes, of_values, queries, KV, WIDTH)
                k_codes = load_codes(k, next_blocks, next_entries, next_is_entry, KV, D, WIDTH, BLOCK_SIZE)
                v_codes = load_codes(v, next_blocks, next_entries, next_is_entry, KV, D, WIDTH, BLOCK_SIZE)
                of_keys = load_scales(
                    k_scales, next_blocks, next_entries, next_is_entry, KV, D, WIDTH, BLOCK_SIZE
                )
                of_values = load_scales(
                    v_scales, next_blocks, next_entries, next_is_entry, KV, D, WIDTH, BLOCK_SIZE
                )
            acc = tl.dot(probs.to(queries.dtype), values, acc * shrink[:, None], input_precision="ieee")
            maximum = new_maximum
            entries, blocks = next_entries, next_blocks
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + token[:, None] * out_stride + element, result, mask=is_element)
    if lse is not None:
        weight = (maximum + tl.log2(total)) * LN_2
        tl.store(lse + token * (KV_HEADS * GROUP) + head, weight, mask=is_query)


def attention_prefill(
    q: Tensor,
    cache: Cache,
    inputs: StepInputs,
    out: Tensor,
    scale: float,
    window: int = 0,
    config: LaunchConfig | None = None,
) -> Tensor | None:
    """Attention of the rows with several queries, to their tokens of out; for window see api.Ops.attention.

    Returns, where inputs.mass is given, what attention_mass needs: the logarithm of what their softmax
    is divided by, [T, H] fp32, undefined of other tokens.
    """
    config = config or config_for(q, cache)
    _check(q, cache, inputs, out, config)
    num_tokens, num_heads, head_dim = q.shape
    num_rows, max_blocks = inputs.block_tables.shape
    group = num_heads // cache.num_kv_heads
    lse = None
    if inputs.mass is not None:
        lse = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=q.device)
    k, v = cache.kv
    has_scales = is_quantised(cache.kv_dtype)
    num_tiles = num_tokens // (config.constants["TILE_ROWS"] // group) + num_rows
    kernel: Any = prefill_kernel
    kernel[(cache.num_kv_heads, num_tiles)](
        q, k, v, scales_of(k) if has_scales else None, scales_of(v) if has_scales else None, out, lse,
        inputs.query_start, inputs.context_lens, inputs.block_tables, inputs.sinks, inputs.windows,
        scale * LOG2_E, window, num_rows, max_blocks, q.stride(0), out.stride(0), KV=cache.kv_dtype,
        KV_HEADS=cache.num_kv_heads, GROUP=group, D=head_dim, BLOCK_SIZE=cache.block_size,
        IS_WINDOWED=window > 0 or inputs.windows is not None, **config.constants,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return lse


def _check(q: Tensor, cache: Cache, inputs: StepInputs, out: Tensor, config: LaunchConfig) -> None:
    _, num_heads, head_dim = q.shape
    k, v = cache.kv
    group, uneven = divmod(num_heads, cache.num_kv_heads)
    if out.shape != q.shape or out.dtype != q.dtype or head_dim != cache.head_dim:
        raise ValueError(f"q is {q.shape} {q.dtype}, out {out.shape} {out.dtype}, keys of {cache.head_dim}")
    if any(x.stride()[1:] != (head_dim, 1) for x in (q, out)):
        raise ValueError(f"heads must lie side by side, strides are {q.stride()} and {out.stride()}")
    if head_dim > MAX_HEAD_DIM or uneven or group > config.constants["TILE_ROWS"]:
        raise ValueError(f"{num_heads} heads of {head_dim} over {cache.num_kv_heads}")
    if k.shape != v.shape or not (k.is_contiguous() and v.is_contiguous()):
        raise ValueError("keys and values must be contiguous, and alike")
    if cache.block_size & (cache.block_size - 1):
        raise ValueError(f"block_size {cache.block_size} is no power of two")
    if inputs.query_start.numel() != len(inputs.block_tables) + 1:
        raise ValueError(f"{inputs.query_start.numel()} edges of {len(inputs.block_tables)} rows")


def config_for(q: Tensor, cache: Cache) -> LaunchConfig:
    """As the GPU's file says; fp32, a mode for tests, has what fits everywhere."""
    default = default_config(cache.head_dim, cache.kv_dtype, q.dtype)
    if q.dtype == torch.float32:
        return default
    return find_config(
        "attention_prefill", default, q.device, head_dim=cache.head_dim, kv_dtype=cache.kv_dtype
    )


def default_config(head_dim: int, kv_dtype: KvDtype, dtype: torch.dtype = torch.bfloat16) -> LaunchConfig:
    """What neither an A100 nor an H100 spills, with windows or without: warps of 16 rows, of 8 where they are
    256 wide. It goes by no more than this, for the bits of a row depend on it."""
    if dtype == torch.float32 or kv_dtype == "fp32":
        return LaunchConfig(4, 1, {"TILE_ROWS": 32, "TILE_KEYS": 32})
    if head_dim > 128:
        return LaunchConfig(8, 2, {"TILE_ROWS": 64, "TILE_KEYS": 32})
    if head_dim > 64:
        return LaunchConfig(8, 3, {"TILE_ROWS": 128, "TILE_KEYS": 32})
    return LaunchConfig(8, 2, {"TILE_ROWS": 128, "TILE_KEYS": 64})


def variants(shape: ModelShape, find: Find = keep_default) -> list[Variant]:
    """Alone, with a layer's window, with sinks and windows of the rows, and for mass."""
    return [
        _variant(shape, find, "", is_windowed=False, has_rows=False, has_lse=False),
        _variant(shape, find, " window", is_windowed=True, has_rows=False, has_lse=False),
        _variant(shape, find, " sinks", is_windowed=True, has_rows=True, has_lse=False),
        _variant(shape, find, " mass", is_windowed=False, has_rows=False, has_lse=True),
    ]


_POINTERS = {
    **dict.fromkeys(("q", "out", "k_scales", "v_scales"), "*bf16"),
    **dict.fromkeys(("query_start", "context_lens", "tables", "sinks", "windows"), "*i32"),
    "lse": "*fp32",
}
_NUMBERS = ("layer_window", "num_rows", "max_blocks", "q_stride", "out_stride")


def _variant(
    shape: ModelShape, find: Find, suffix: str, *, is_windowed: bool, has_rows: bool, has_lse: bool
) -> Variant:
    stored = stored_type(shape)
    pointers = _POINTERS | {"k": stored, "v": stored}
    absent: list[str] = [] if is_quantised(shape.kv_dtype) else ["k_scales", "v_scales"]
    absent += [] if has_rows else ["sinks", "windows"]
    absent += [] if has_lse else ["lse"]
    default = default_config(shape.head_dim, shape.kv_dtype)
    config = find("attention_prefill", default, head_dim=shape.head_dim, kv_dtype=shape.kv_dtype)
    constants = attention_constants(shape, absent, config) | {"IS_WINDOWED": is_windowed}
    return Variant(
        name=f"prefill {shape.name} {shape.kv_dtype}{suffix}",
        kernel=prefill_kernel,
        types={**pointers, "scale": "fp32", **dict.fromkeys(_NUMBERS, "i32")},
        constants=constants,
        aligned=frozenset({*pointers, "q_stride", "out_stride"} - set(absent)),
        config=config,
        has_dot=True,
    )
