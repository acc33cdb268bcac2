"""Rotates queries and keys, and writes keys and values into the paged cache, quantised if it is.

    q [T, H, D]            rotated in place (Su et al. 2021): element i is paired with i + D / 2
    k, v [T, Hkv, D]       the rotated k, and v, go to the cache (kernels.cache) at slot_mapping [T] int64;
                           both are left as they are. A token of slot -1 is written nowhere; its q is rotated
    cos, sin [T, 1, D / 2] fp32, contiguous

bf16 or fp32; q, k and v may have any strides but in their last dimension, which is contiguous. A rotated key
is rounded to its dtype before it is stored or quantised, as in reference.ops.
Bytes moved, a token, in e bytes an element: (2 H + 2 Hkv) D e, 2 Hkv stored rows, 4 D of angles; 6 (H + Hkv)
D flops. A program has HEADS heads of one token: of queries, or of keys and values.

The cache's bytes are those of reference.quantise of the rotated k and of v (see stored_rows). A rotated
number may differ from the reference's in the last bit of fp32, before it is rounded, for a compiler may fuse
a product and a sum; the interpreter does not.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.api import Rotation
from pipeline.gpu.kernels.cache import Cache, scales_of
from pipeline.gpu.kernels.finding import Find, LaunchConfig, find_config, keep_default
from pipeline.gpu.kernels.stored_rows import store_rows
from pipeline.gpu.kernels.variant import ModelShape, Variant
from pipeline.gpu.kv.dtype import GROUP, KvDtype, is_quantised

DEFAULT = LaunchConfig(num_warps=2, num_stages=1, constants={"HEADS": 8})
"""8 heads of 128 in bf16: a thread has 8 elements of either half, a load of 16 bytes each."""


@triton.jit
def rope_kv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    slot_ptr,
    stored_k_ptr,
    stored_v_ptr,
    scales_k_ptr,
    scales_v_ptr,
    q_stride_t,
    q_stride_h,
    k_stride_t,
    k_stride_h,
    v_stride_t,
    v_stride_h,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KV: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    num_query_parts: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    cos = cos_ptr + token * (D // 2)
    sin = sin_ptr + token * (D // 2)
    if part < num_query_parts:
        heads = part * HEADS + tl.arange(0, HEADS)
        rotate(q_ptr + token * q_stride_t + heads * q_stride_h, cos, sin, heads < NUM_HEADS, D, WIDTH // 2)
    else:
        heads = (part - num_query_parts) * HEADS + tl.arange(0, HEADS)
        slot = tl.load(slot_ptr + token).to(tl.int64)
        is_kept = (heads < NUM_KV_HEADS) & (slot >= 0)
        blocks = (slot // BLOCK_SIZE) * NUM_KV_HEADS + heads
        place = slot % BLOCK_SIZE
        k = rotated(k_ptr + token * k_stride_t + heads * k_stride_h, cos, sin, is_kept, D, WIDTH)
        store_rows(k, stored_k_ptr, scales_k_ptr, blocks, place, is_kept, KV, D, BLOCK_SIZE)
        column = tl.arange(0, WIDTH)
        mask = is_kept[:, None] & (column < D)[None, :]
        values = v_ptr + token * v_stride_t + heads * v_stride_h
        v = tl.load(values[:, None] + column[None, :], mask=mask, other=0.0)
        store_rows(v, stored_v_ptr, scales_v_ptr, blocks, place, is_kept, KV, D, BLOCK_SIZE)


@triton.jit
def rotate(heads, cos_ptr, sin_ptr, is_head, D: tl.constexpr, HALF: tl.constexpr):
    """In place: a thread stores only what it has loaded."""
    column = tl.arange(0, HALF)
    mask = is_head[:, None] & (column < D // 2)[None, :]
    places = heads[:, None] + column[None, :]
    first = tl.load(places, mask=mask, other=0.0)
    second = tl.load(places + D // 2, mask=mask, other=0.0)
    cos = tl.load(cos_ptr + column, mask=column < D // 2, other=0.0)[None, :]
    sin = tl.load(sin_ptr + column, mask=column < D // 2, other=0.0)[None, :]
    x, y = first.to(tl.float32), second.to(tl.float32)
    tl.store(places, (x * cos - y * sin).to(first.dtype), mask=mask)
    tl.store(places + D // 2, (y * cos + x * sin).to(first.dtype), mask=mask)


@triton.jit
def rotated(heads, cos_ptr, sin_ptr, is_head, D: tl.constexpr, WIDTH: tl.constexpr):
    """[HEADS, WIDTH] of k's dtype, 0 from column D on: whole rows, whose groups have a scale."""
    column = tl.arange(0, WIDTH)
    is_first = column < D // 2
    other = tl.where(is_first, column + D // 2, column - D // 2)
    angle = tl.minimum(column, other)
    mask = is_head[:, None] & (column < D)[None, :]
    x = tl.load(heads[:, None] + column[None, :], mask=mask, other=0.0)
    y = tl.load(heads[:, None] + other[None, :], mask=mask, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + angle, mask=column < D, other=0.0)[None, :]
    sin = tl.load(sin_ptr + angle, mask=column < D, other=0.0)
    sin = tl.where(is_first, -sin, sin)[None, :]
    return (x.to(tl.float32) * cos + y * sin).to(x.dtype)


def rope_and_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: Rotation,
    cache: Cache,
    slot_mapping: Tensor,
    config: LaunchConfig | None = None,
) -> None:
    """api.Ops.rope_and_write_kv."""
    config = config or _default(q.device, cache.head_dim, cache.kv_dtype)
    _check(q, k, v, rotation, cache, slot_mapping)
    num_tokens, num_heads, head_dim = q.shape
    constants = _constants(num_heads, k.shape[1], head_dim, cache.block_size, cache.kv_dtype, config)
    heads = config.constants["HEADS"]
    scales = [scales_of(side) if is_quantised(cache.kv_dtype) else side for side in cache.kv]
    rope_kv_kernel[(num_tokens, triton.cdiv(num_heads, heads) + triton.cdiv(k.shape[1], heads))](
        q,
        k,
        v,
        *rotation,
        slot_mapping,
        *cache.kv,
        *scales,
        *(stride for x in (q, k, v) for stride in x.stride()[:2]),
        **constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def _default(device: torch.device, head_dim: int, kv_dtype: KvDtype) -> LaunchConfig:
    return find_config("rope_kv", DEFAULT, device, head_dim=head_dim, kv_dtype=kv_dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, cache: Cache, slot_mapping: Tensor) -> None:
    num_tokens, _, head_dim = q.shape
    if k.shape != v.shape or k.shape != (num_tokens, cache.num_kv_heads, cache.head_dim):
        raise ValueError(f"keys {list(k.shape)} and values {list(v.shape)} beside queries {list(q.shape)}")
    if any(x.stride(2) != 1 for x in (q, k, v)):
        raise ValueError("queries, keys and values must be contiguous in their last dimension")
    if any(x.shape != (num_tokens, 1, head_dim // 2) or not x.is_contiguous() for x in rotation):
        raise ValueError(f"cos and sin are not [{num_tokens}, 1, {head_dim // 2}], contiguous")
    if slot_mapping.shape != (num_tokens,) or not all(side.is_contiguous() for side in cache.kv):
        raise ValueError("a slot for each token, and a contiguous cache")


def _constants(
    num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, kv_dtype: KvDtype, config: LaunchConfig
) -> dict[str, int | str]:
    return {
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "D": head_dim,
        "WIDTH": max(GROUP, triton.next_power_of_2(head_dim)),
        "BLOCK_SIZE": block_size,
        "KV": kv_dtype,
        **config.constants,
    }


def variants(shape: ModelShape, find: Find = keep_default) -> list[Variant]:
    """The one of the shape's KV dtype."""
    stored = "u8" if is_quantised(shape.kv_dtype) else shape.kv_dtype
    pointers = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "scales_k_ptr", "scales_v_ptr"), "*bf16")
    pointers |= dict.fromkeys(("cos_ptr", "sin_ptr"), "*fp32") | {"slot_ptr": "*i64"}
    pointers |= dict.fromkeys(("stored_k_ptr", "stored_v_ptr"), f"*{stored}")
    strides = [f"{x}_stride_{dim}" for x in "qkv" for dim in "th"]
    sizes = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.block_size, shape.kv_dtype
    config = find("rope_kv", DEFAULT, head_dim=shape.head_dim, kv_dtype=shape.kv_dtype)
    return [
        Variant(
            name=f"rope_kv {shape.name} {shape.kv_dtype}",
            kernel=rope_kv_kernel,
            types={**pointers, **dict.fromkeys(strides, "i32")},
            constants=_constants(*sizes, config),
            aligned=frozenset((*pointers, *strides)),
            config=config,
            max_registers=80,  # twelve programs of 2 warps, 24 warps, fill a multiprocessor's 64 Ki registers
        )
    ]
