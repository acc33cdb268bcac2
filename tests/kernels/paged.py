"""Paged caches of kernels.cache out of plain keys and values, and plain ones out of them.

Block ids are drawn at random, and all that no token was written to is poison: NaN, or bytes that are NaN as
scales.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.gpu.api import LayerKv
from pipeline.gpu.kernels.cache import Cache, kv_format
from pipeline.gpu.kv.dtype import KvDtype, code_bytes, is_quantised
from pipeline.gpu.reference.quantise import dequantise, quantise, row_bytes
from tests.kernels.guarded import poisoned

POISON = 0xFF


class Paged(NamedTuple):
    """Rows of a step, and what their queries must find."""

    cache: Cache
    block_tables: Tensor
    """[B, max_blocks] int32; past a row's blocks, a block of poison."""
    context_lens: Tensor
    """[B] int32."""
    keys: list[Tensor]
    """Of each row, [n, Hkv, D] fp32: what comes back of those that were written."""
    values: list[Tensor]


def empty_cache(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, kv_dtype: KvDtype
) -> Cache:
    """All poison, between guard pages."""
    shape, dtype = kv_format(num_blocks, block_size, num_kv_heads, head_dim, kv_dtype)
    kv = LayerKv(poisoned(shape, dtype), poisoned(shape, dtype))
    if is_quantised(kv_dtype):
        for side in kv:
            side.fill_(POISON)
    return Cache(kv, kv_dtype, block_size, head_dim)


def paged(rows: Sequence[tuple[Tensor, Tensor]], kv_dtype: KvDtype, block_size: int, seed: int = 0) -> Paged:
    """Of each row its keys and values, [n, Hkv, D] of any float dtype, n from 0 on."""
    lens = [len(k) for k, _ in rows]
    counts = [-(-n // block_size) for n in lens]
    _, num_kv_heads, head_dim = rows[0][0].shape
    ids = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(seed)).int()
    cache = empty_cache(len(ids), block_size, num_kv_heads, head_dim, kv_dtype)
    tables = ids[-1].repeat(len(rows), max([1, *counts]))
    starts = [0, *accumulate(counts)]
    keys, values = [], []
    for row, (k, v) in enumerate(rows):
        tables[row, : counts[row]] = ids[starts[row] : starts[row + 1]]
        entries = torch.arange(lens[row])
        slots = tables[row, entries // block_size].long() * block_size + entries % block_size
        keys.append(write_slots(cache, cache.kv.k, slots, k))
        values.append(write_slots(cache, cache.kv.v, slots, v))
    return Paged(cache, tables, torch.tensor(lens, dtype=torch.int32), keys, values)


def write_slots(cache: Cache, stored: Tensor, slots: Tensor, rows: Tensor) -> Tensor:
    """Rows [n, Hkv, D] into one side of the cache at slots [n]; -> what a read gives, fp32."""
    blocks, offsets = slots // cache.block_size, slots % cache.block_size
    if not len(rows):
        return rows.float()
    if not is_quantised(cache.kv_dtype):
        stored[blocks, :, offsets] = rows.to(stored.dtype)
        return rows.to(stored.dtype).float()
    as_bytes = quantise(rows, cache.kv_dtype)
    codes, scales = _parts(cache, stored)
    split = codes.shape[-1]
    codes[blocks, :, offsets], scales[blocks, :, offsets] = as_bytes[..., :split], as_bytes[..., split:]
    return dequantise(as_bytes, cache.head_dim, cache.kv_dtype)


def stored_rows(cache: Cache, stored: Tensor) -> Tensor:
    """One side as rows: [num_blocks, Hkv, block_size, D], or the rows of reference.quantise, as bytes."""
    return torch.cat(_parts(cache, stored), -1) if is_quantised(cache.kv_dtype) else stored


def _parts(cache: Cache, stored: Tensor) -> tuple[Tensor, Tensor]:
    # views: codes [num_blocks, Hkv, block_size, code bytes], scales [num_blocks, Hkv, block_size, bytes]
    split = code_bytes(cache.head_dim, cache.kv_dtype)
    codes = stored[..., : cache.block_size * split].unflatten(-1, (cache.block_size, split))
    width = row_bytes(cache.head_dim, cache.kv_dtype) - split
    scales = stored[..., cache.block_size * split :].unflatten(-1, (cache.block_size, width))
    return codes, scales
