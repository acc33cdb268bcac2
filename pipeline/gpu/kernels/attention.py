"""Paged attention in plain torch over the tiles of kernels.tiles; softmax and sums in fp32.

Cache layout [Hkv, num_blocks, block_size, D]: a tile is gathered as whole blocks of one head, and the
G = H / Hkv query heads of a key/value head are rows of one matrix product, so no key is repeated.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.gpu.api import LayerKv
from pipeline.gpu.kernels.tiles import MASKED, TILE, DecodeTiles, PrefillTiles, QueryBlock

MIN_ROWS_FP32 = 16
"""fp32 products with fewer rows go to other MKL kernels, which round differently."""


class Partial(NamedTuple):
    """Attention within each tile, and what a tile weighs against the row's others: weight * exp(maximum)."""

    maximum: Tensor
    """Of the tile's scores."""
    weight: Tensor
    """Sum of exp(score - maximum)."""
    output: Tensor
    """softmax(scores) V, of the tile alone; the model's dtype."""


def causal_mask(device: torch.device) -> Tensor:
    """[TILE, 1, TILE] fp32: MASKED where the key is later than the query."""
    return torch.full((TILE, TILE), MASKED, device=device).triu(1)[:, None]


def attend_decode(q: Tensor, kv: LayerKv, tiles: DecodeTiles, scale: float) -> Tensor:
    """One query a row: q [rows, H, D] -> [rows, H, D]."""
    num_kv_heads, _, _, head_dim = kv.k.shape
    num_rows, num_heads, _ = q.shape
    num_items, group = tiles.item_rows.numel(), num_heads // num_kv_heads
    by_head = q.view(num_rows, num_kv_heads, group, head_dim).transpose(0, 1)
    queries = by_head.index_select(1, tiles.item_rows).view(-1, group, head_dim)
    k = _gather(kv.k, tiles.block_ids).view(-1, TILE, head_dim)
    v = _gather(kv.v, tiles.block_ids).view(-1, TILE, head_dim)
    scores = _bmm(queries, k.transpose(1, 2)).float().view(num_kv_heads, num_items, group, TILE)
    maximum, weight, probs = _softmax(torch.add(tiles.mask, scores, alpha=scale))
    output = _bmm(probs.view(-1, group, TILE).to(v.dtype), v).view(num_kv_heads, num_items, group, head_dim)
    if tiles.items_of_row is not None:
        output = _merge_items(Partial(maximum, weight, output), tiles.item_rows, tiles.items_of_row, num_rows)
    return output.transpose(0, 1).reshape(num_rows, num_heads, head_dim).to(q.dtype)


def _merge_items(part: Partial, item_rows: Tensor, items_of_row: Tensor, num_rows: int) -> Tensor:
    # items [Hkv, N, G, .] -> rows [Hkv, rows, G, D]; index_add_ adds in item order, which is tile order
    num_kv_heads, _, group, head_dim = part.output.shape
    padded = part.maximum.index_select(1, items_of_row).view(num_kv_heads, num_rows, -1, group, 1)
    factor = torch.exp(part.maximum - padded.amax(2).index_select(1, item_rows)).mul_(part.weight)
    total = factor.new_zeros(num_kv_heads, num_rows, group, 1).index_add_(1, item_rows, factor)
    share = factor.div_(total.index_select(1, item_rows))
    merged = share.new_zeros(num_kv_heads, num_rows, group, head_dim)
    return merged.index_add_(1, item_rows, part.output * share)


def attend_prefill(
    q: Tensor, kv: LayerKv, tiles: PrefillTiles, causal: Tensor, scale: float, out: Tensor
) -> None:
    """One row's queries among q [T, H, D]; writes its part of out [T, H, D]."""
    k, v = _gather(kv.k, tiles.block_ids), _gather(kv.v, tiles.block_ids)
    for block in tiles.blocks:
        out[block.start : block.end] = _attend_block(q[block.start : block.end], k, v, block, causal, scale)


def _attend_block(q: Tensor, k: Tensor, v: Tensor, block: QueryBlock, causal: Tensor, scale: float) -> Tensor:
    # q [n, H, D]; k, v [Hkv, tiles * TILE, D] -> [n, H, D]
    num_kv_heads, _, head_dim = k.shape
    n, num_heads, _ = q.shape
    group, num_tiles = num_heads // num_kv_heads, block.num_tiles
    queries = q.view(n, num_kv_heads, group, head_dim).transpose(0, 1).reshape(num_kv_heads, -1, head_dim)
    scores = _bmm(queries, k[:, : num_tiles * TILE].transpose(1, 2)).float().mul_(scale)
    scores = scores.view(num_kv_heads, n, group, num_tiles, TILE)
    scores[:, :, :, -1] += causal[block.offset : block.offset + n]
    maximum, weight, probs = _softmax(scores.view(num_kv_heads, n * group, num_tiles, TILE))
    by_tile = torch.empty(num_kv_heads, num_tiles, n * group, TILE, dtype=v.dtype, device=v.device)
    by_tile.copy_(probs.transpose(1, 2))  # converts and reorders in one pass
    values = v[:, : num_tiles * TILE].reshape(-1, TILE, head_dim)
    output = _bmm(by_tile.view(-1, n * group, TILE), values).view(num_kv_heads, num_tiles, -1, head_dim)
    if num_tiles > 1:
        merged = _merge_tiles(Partial(maximum.transpose(1, 2), weight.transpose(1, 2), output))
    else:
        merged = output[:, 0]
    return merged.view(num_kv_heads, n, group, head_dim).transpose(0, 1).reshape(n, num_heads, head_dim)


def _merge_tiles(part: Partial) -> Tensor:
    # [Hkv, tiles, rows, .] -> [Hkv, rows, D], with the arithmetic of _merge_items
    factor = torch.exp(part.maximum - part.maximum.amax(1, keepdim=True)).mul_(part.weight)
    total = factor[:, 0].clone()
    for tile in range(1, factor.shape[1]):
        total += factor[:, tile]
    share = factor.div_(total[:, None])
    merged = part.output[:, 0] * share[:, 0]
    for tile in range(1, factor.shape[1]):
        merged += part.output[:, tile] * share[:, tile]
    return merged


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # [..., TILE] -> maximum, weight [..., 1], softmax; the most probable key has exp(0) / weight.
    # torch.softmax is split over threads between rows only, and far faster than torch.exp on masked scores
    probs = torch.softmax(scores, -1)
    return scores.amax(-1, keepdim=True), probs.amax(-1, keepdim=True).reciprocal_(), probs


def _gather(cache: Tensor, block_ids: Tensor) -> Tensor:
    # [Hkv, num_blocks, block_size, D] -> [Hkv, len(block_ids) * block_size, D]
    num_kv_heads, num_blocks, _, head_dim = cache.shape
    blocks = cache.view(num_kv_heads, num_blocks, -1).index_select(1, block_ids)
    return blocks.view(num_kv_heads, -1, head_dim)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    num_rows = a.shape[1]
    if a.dtype != torch.float32 or num_rows >= MIN_ROWS_FP32:
        return torch.bmm(a, b)
    return torch.bmm(F.pad(a, (0, 0, 0, MIN_ROWS_FP32 - num_rows)), b)[:, :num_rows]
