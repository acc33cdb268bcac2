"""Paged attention in plain torch over the tiles of reference.tiles; softmax and sums in fp32.

Cache layout [Hkv, num_blocks, block_size, stored row]: a tile is gathered as whole blocks of one head, and
dequantised to the queries' dtype. The G = H / Hkv query heads of a key/value head are rows of one matrix
product, so no key is repeated.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.gpu.api import LayerKv
from pipeline.gpu.kv.dtype import KvDtype, is_quantised
from pipeline.gpu.reference.quantise import dequantise
from pipeline.gpu.reference.tiles import TILE, DecodeTiles, PrefillTiles

MIN_ROWS_FP32 = 16
"""fp32 products with fewer rows go to other MKL kernels, which round differently."""
MASS_ONE = 2.0**32
"""StepInputs.mass: what a query head's whole attention counts."""


class Cache(NamedTuple):
    """One layer's keys and values, and how to read and account for them."""

    kv: LayerKv
    kv_dtype: KvDtype
    mass: Tensor | None
    """StepInputs.mass."""


def attend_decode(q: Tensor, cache: Cache, tiles: DecodeTiles, scale: float) -> Tensor:
    """One query a row: q [rows, H, D] -> [rows, H, D]."""
    num_kv_heads = cache.kv.k.shape[0]
    num_rows, num_heads, head_dim = q.shape
    num_items, group = tiles.item_rows.numel(), num_heads // num_kv_heads
    by_head = q.view(num_rows, num_kv_heads, group, head_dim).transpose(0, 1)
    queries = by_head.index_select(1, tiles.item_rows).view(-1, group, head_dim)
    k, v = (_gather(side, tiles.block_ids, cache.kv_dtype, q).flatten(0, 1) for side in cache.kv)
    scores = _bmm(queries, k.transpose(1, 2)).float().view(num_kv_heads, num_items, group, TILE)
    maximum, weight, probs = _softmax(torch.add(tiles.mask, scores, alpha=scale))
    output = _bmm(probs.view(-1, group, TILE).to(v.dtype), v).view(num_kv_heads, num_items, group, head_dim)
    if tiles.items_of_row is not None:
        share = _shares_of_items(maximum, weight, tiles.item_rows, tiles.items_of_row, num_rows)
        merged = share.new_zeros(num_kv_heads, num_rows, group, head_dim)
        output, probs = merged.index_add_(1, tiles.item_rows, output * share), probs.mul_(share)
    if cache.mass is not None:
        _count_mass(cache.mass, tiles.mass_index, probs.transpose(1, 2))
    return output.transpose(0, 1).reshape(num_rows, num_heads, head_dim).to(q.dtype)


def _shares_of_items(
    maximum: Tensor, weight: Tensor, item_rows: Tensor, items_of_row: Tensor, num_rows: int
) -> Tensor:
    # items [Hkv, N, G, 1] -> each's share of its row; index_add_ adds in item order, which is tile order
    num_kv_heads, _, group, _ = maximum.shape
    padded = maximum.index_select(1, items_of_row).view(num_kv_heads, num_rows, -1, group, 1)
    factor = torch.exp(maximum - padded.amax(2).index_select(1, item_rows)).mul_(weight)
    total = factor.new_zeros(num_kv_heads, num_rows, group, 1).index_add_(1, item_rows, factor)
    return factor.div_(total.index_select(1, item_rows))


def attend_prefill(q: Tensor, cache: Cache, tiles: PrefillTiles, scale: float, out: Tensor) -> None:
    """One row's queries among q [T, H, D]; writes its part of out [T, H, D]."""
    k, v = (_gather(side, tiles.block_ids, cache.kv_dtype, q) for side in cache.kv)
    for block in tiles.blocks:
        span = slice(block.start, block.end)
        merged, probs = _attend_block(q[span], k[:, block.tiles], v[:, block.tiles], block.mask, scale)
        out[span] = merged
        if cache.mass is not None:
            _count_mass(cache.mass, tiles.mass_index[block.tiles], probs)


def _attend_block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    # q [n, H, D]; k, v [Hkv, tiles, TILE, D] -> [n, H, D]; probabilities [Hkv, n * G, tiles, TILE]
    num_kv_heads, num_tiles, _, head_dim = k.shape
    n, num_heads, _ = q.shape
    group = num_heads // num_kv_heads
    queries = q.view(n, num_kv_heads, group, head_dim).transpose(0, 1).reshape(num_kv_heads, -1, head_dim)
    scores = _bmm(queries, k.flatten(1, 2).transpose(1, 2)).float().mul_(scale)
    scores = scores.view(num_kv_heads, n, group, num_tiles, TILE)
    scores[:, :, :, -mask.shape[2] :] += mask
    maximum, weight, probs = _softmax(scores.flatten(1, 2))
    by_tile = torch.empty(num_kv_heads, num_tiles, n * group, TILE, dtype=v.dtype, device=v.device)
    by_tile.copy_(probs.transpose(1, 2))  # converts and reorders in one pass
    output = _bmm(by_tile.flatten(0, 1), v.flatten(0, 1)).view(num_kv_heads, num_tiles, -1, head_dim)
    merged = output[:, 0]
    if num_tiles > 1:
        share = _shares_of_tiles(maximum.transpose(1, 2), weight.transpose(1, 2))
        merged, probs = _merge_tiles(output, share), probs.mul_(share.transpose(1, 2))
    return merged.view(num_kv_heads, n, group, head_dim).transpose(0, 1).flatten(1, 2), probs


def _shares_of_tiles(maximum: Tensor, weight: Tensor) -> Tensor:
    # [Hkv, tiles, rows, 1], with the arithmetic of _shares_of_items
    factor = torch.exp(maximum - maximum.amax(1, keepdim=True)).mul_(weight)
    total = factor[:, 0].clone()
    for tile in range(1, factor.shape[1]):
        total += factor[:, tile]
    return factor.div_(total[:, None])


def _merge_tiles(output: Tensor, share: Tensor) -> Tensor:
    # [Hkv, tiles, rows, .] -> [Hkv, rows, D], in tile order
    merged = output[:, 0] * share[:, 0]
    for tile in range(1, share.shape[1]):
        merged += output[:, tile] * share[:, tile]
    return merged


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # of each tile alone, and what it weighs against the row's others: weight * exp(maximum).
    # [..., TILE] -> maximum, weight [..., 1], softmax; the most probable key has exp(0) / weight.
    # torch.softmax is split over threads between rows only, and far faster than torch.exp on masked scores
    probs = torch.softmax(scores, -1)
    return scores.amax(-1, keepdim=True), probs.amax(-1, keepdim=True).reciprocal_(), probs


def _gather(stored: Tensor, block_ids: Tensor, kv_dtype: KvDtype, q: Tensor) -> Tensor:
    # [Hkv, num_blocks, block_size, stored row] -> [Hkv, tiles, TILE, D] of q's dtype
    num_kv_heads, num_blocks, _, width = stored.shape
    rows = stored.view(num_kv_heads, num_blocks, -1).index_select(1, block_ids)
    rows = rows.view(num_kv_heads, -1, TILE, width)
    return (dequantise(rows, q.shape[-1], kv_dtype) if is_quantised(kv_dtype) else rows).to(q.dtype)


def _count_mass(mass: Tensor, index: Tensor, probs: Tensor) -> None:
    # probs [..., tiles, TILE], index [tiles * blocks per tile]; integers, so that no sum depends on an order
    units = probs.double().mul_(MASS_ONE).round_().long().flatten(0, -3).sum(0)
    mass.view(-1).index_add_(0, index.flatten(), units.view(index.numel(), -1).sum(1))


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    num_rows = a.shape[1]
    if a.dtype != torch.float32 or num_rows >= MIN_ROWS_FP32:
        return torch.bmm(a, b)
    return torch.bmm(F.pad(a, (0, 0, 0, MIN_ROWS_FP32 - num_rows)), b)[:, :num_rows]
