"""How much rows with several queries attend to each block of their context: added to StepInputs.mass. Of
rows with one query attention_decode adds it; those are left alone here.

Shapes: as attention_prefill, whose logarithms lse [T, H] fp32 this needs; mass [B, max_blocks] int64, in
units of 2**-32, summed over queries and query heads.

A program does one key/value head and TILE_KEYS entries of a row, against all queries that see any of them,
in tiles of TILE_ROWS // G queries: scores again, exp2, integers. Each probability is rounded to a unit, as
in reference.attention, and units are integers: so no sum depends on an order, and a row's mass is the same
in any batch and in any chunks of at least two queries. There are B * max_blocks * block_size / TILE_KEYS
programs a head; those past a row's context return at once.

Flops: 2 H D for each query and entry that it sees, in tensor cores: half of what attention takes. Read: a
row's keys once, its queries once for each tile of keys, from L2. Written: an atomic addition for each block
and key/value head. It runs where a policy asks what may be dropped (heavy_hitter, docs/decisions/0018), in
each layer, after attention_prefill.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.api import StepInputs
from pipeline.gpu.kernels.attention_prefill import LOG2_E
from pipeline.gpu.kernels.cache import Cache, scales_of
from pipeline.gpu.kernels.code_tile import dequantised, load_codes, load_scales
from pipeline.gpu.kernels.finding import Find, LaunchConfig, find_config, keep_default
from pipeline.gpu.kernels.seen import what_is_seen
from pipeline.gpu.kernels.stored_tile import head_blocks, load_tile
from pipeline.gpu.kernels.variant import ModelShape, Variant, attention_constants, stored_type
from pipeline.gpu.kv.dtype import is_quantised

MASS_ONE = tl.constexpr(4294967296.0)
LOG2_OF_E = tl.constexpr(LOG2_E)


@triton.jit
def seeing_queries(first_entry, first_key, last_key, num_sinks, window, num_queries):
    """-> the first query of the row that sees any of these keys, and the one after the last."""
    begin = tl.maximum(first_key - first_entry, 0)
    end = tl.minimum(last_key + window - first_entry, num_queries)
    return begin, tl.where(first_key < num_sinks, num_queries, end)


@triton.jit
def add_to_blocks(mass, units, first_key, max_blocks, BLOCK_SIZE: tl.constexpr):
    """units [KEYS] int64 of the entries from first_key on, to the blocks they lie in."""
    KEYS: tl.constexpr = units.shape[0]
    SIZE: tl.constexpr = BLOCK_SIZE if BLOCK_SIZE < KEYS else KEYS
    block = first_key // BLOCK_SIZE + tl.arange(0, KEYS // SIZE)
    of_blocks = tl.sum(units.reshape(KEYS // SIZE, SIZE), 1)
    tl.atomic_add(mass + block, of_blocks, mask=block < max_blocks, sem="relaxed")


@triton.jit(do_not_specialize=["layer_window", "max_blocks"])
def mass_kernel(
    q, k, k_scales, lse, mass, query_start, context_lens, tables, sinks, windows, scale, layer_window,
    max_blocks, q_stride, KV: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr,
):  # fmt: skip
    """q, k: see attention_mass; scale times log2(e)."""
    WIDTH: tl.constexpr = triton.next_power_of_2(D)
    QUERIES: tl.constexpr = TILE_ROWS // GROUP
    kv_head = tl.program_id(0)
    first_key = tl.program_id(1) * TILE_KEYS
    row = tl.program_id(2).to(tl.int64)
    start = tl.load(query_start + row)
    num_queries = tl.load(query_start + row + 1) - start
    context_len = tl.load(context_lens + row)
    if num_queries < 2 or first_key >= context_len:
        return
    first_entry = context_len - num_queries
    last_key = tl.minimum(first_key + TILE_KEYS, context_len) - 1
    num_sinks, window = what_is_seen(sinks, windows, row, layer_window)
    begin, end = seeing_queries(first_entry, first_key, last_key, num_sinks, window, num_queries)
    lane = tl.arange(0, TILE_ROWS)
    column = tl.arange(0, WIDTH)
    head = kv_head * GROUP + lane % GROUP
    entries = first_key + tl.arange(0, TILE_KEYS)
    is_entry = entries < context_len
    blocks = head_blocks(tables + row * max_blocks, entries, is_entry, kv_head, KV_HEADS, BLOCK_SIZE)
    like = tl.zeros([1], q.dtype.element_ty)
    if KV == "bf16" or KV == "fp32":
        keys = load_tile(k, blocks, entries, is_entry, like, D, WIDTH, BLOCK_SIZE)
    else:
        codes = load_codes(k, blocks, entries, is_entry, KV, D, WIDTH, BLOCK_SIZE)
        of_keys = load_scales(k_scales, blocks, entries, is_entry, KV, D, WIDTH, BLOCK_SIZE)
        keys = dequantised(codes, of_keys, like, KV, WIDTH)
    units = tl.zeros([TILE_KEYS], tl.int64)
    for first_query in range(begin, end, QUERIES):
        query = first_query + lane // GROUP
        is_query = (lane < QUERIES * GROUP) & (query < end)
        token = (start + query).to(tl.int64)
        at = q + token[:, None] * q_stride + head[:, None] * D + column[None, :]
        queries = tl.load(at, mask=is_query[:, None] & (column < D)[None, :], other=0.0)
        weight = tl.load(lse + token * (KV_HEADS * GROUP) + head, mask=is_query, other=0.0) * LOG2_OF_E
        entry = first_entry + query
        is_recent = entries[:, None] > entry[None, :] - window
        is_seen = (is_recent | (entries < num_sinks)[:, None]) & (entries[:, None] <= entry[None, :])
        scores = tl.dot(keys, tl.trans(queries), input_precision="ieee")
        probs = tl.exp2(scores * scale - weight[None, :])
        probs = tl.where(is_seen & is_query[None, :], probs, 0.0)
        units += tl.sum((probs * MASS_ONE + 0.5).to(tl.int64), 1)
    add_to_blocks(mass + row * max_blocks, units, first_key, max_blocks, BLOCK_SIZE)


def attention_mass(
    q: Tensor,
    cache: Cache,
    inputs: StepInputs,
    lse: Tensor,
    scale: float,
    window: int = 0,
    config: LaunchConfig | None = None,
) -> None:
    """Add to inputs.mass what the rows with several queries attended to, with the arguments and the result of
    attention_prefill."""
    if inputs.mass is None or inputs.mass.shape != inputs.block_tables.shape:
        raise ValueError(f"mass must be given, {tuple(inputs.block_tables.shape)}")
    if lse.shape != q.shape[:2] or not lse.is_contiguous():
        raise ValueError(f"lse is {tuple(lse.shape)}, q {tuple(q.shape)}")
    config = config or config_for(q, cache)
    if q.shape[1] // cache.num_kv_heads > config.constants["TILE_ROWS"]:
        raise ValueError(f"{q.shape[1]} heads over {cache.num_kv_heads}")
    num_rows, max_blocks = inputs.block_tables.shape
    num_tiles = -(-max_blocks * cache.block_size // config.constants["TILE_KEYS"])
    k = cache.kv.k
    kernel: Any = mass_kernel
    kernel[(cache.num_kv_heads, num_tiles, num_rows)](
        q, k, scales_of(k) if is_quantised(cache.kv_dtype) else None, lse, inputs.mass, inputs.query_start,
        inputs.context_lens, inputs.block_tables, inputs.sinks, inputs.windows, scale * LOG2_E, window,
        max_blocks, q.stride(0), KV=cache.kv_dtype, KV_HEADS=cache.num_kv_heads,
        GROUP=q.shape[1] // cache.num_kv_heads, D=cache.head_dim, BLOCK_SIZE=cache.block_size,
        **config.constants, num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip


def config_for(q: Tensor, cache: Cache) -> LaunchConfig:
    """As the GPU's file says; fp32, a mode for tests, has what fits everywhere."""
    default = default_config(cache.head_dim, q.dtype)
    if q.dtype == torch.float32:
        return default
    return find_config("attention_mass", default, q.device, head_dim=cache.head_dim, kv_dtype=cache.kv_dtype)


def default_config(head_dim: int, dtype: torch.dtype = torch.bfloat16) -> LaunchConfig:
    """Keys stay with the warps, 16 each; queries stream past."""
    rows = 32 if head_dim > 128 or dtype == torch.float32 else 64
    return LaunchConfig(4, 2, {"TILE_ROWS": rows, "TILE_KEYS": 64})


def variants(shape: ModelShape, find: Find = keep_default) -> list[Variant]:
    """With and without windows of the rows."""
    return [_variant(shape, find, "", has_rows=False), _variant(shape, find, " sinks", has_rows=True)]


_POINTERS = {
    **dict.fromkeys(("q", "k_scales"), "*bf16"),
    **dict.fromkeys(("query_start", "context_lens", "tables", "sinks", "windows"), "*i32"),
    "lse": "*fp32",
    "mass": "*i64",
}
_NUMBERS = ("layer_window", "max_blocks", "q_stride")


def _variant(shape: ModelShape, find: Find, suffix: str, *, has_rows: bool) -> Variant:
    stored = stored_type(shape)
    absent: list[str] = [] if is_quantised(shape.kv_dtype) else ["k_scales"]
    absent += [] if has_rows else ["sinks", "windows"]
    default = default_config(shape.head_dim)
    config = find("attention_mass", default, head_dim=shape.head_dim, kv_dtype=shape.kv_dtype)
    constants = attention_constants(shape, absent, config)
    return Variant(
        name=f"mass {shape.name} {shape.kv_dtype}{suffix}",
        kernel=mass_kernel,
        types={**_POINTERS, "k": stored, "scale": "fp32", **dict.fromkeys(_NUMBERS, "i32")},
        constants=constants,
        aligned=frozenset({*_POINTERS, "k", "q_stride"} - set(absent)),
        config=config,
        has_dot=True,
    )
