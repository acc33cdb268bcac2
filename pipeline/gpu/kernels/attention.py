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
    """softmax(q K^T) V of some tiles, each relative to its own maximum."""

    maximum: Tensor
    weight: Tensor
    """Sum of exp(score - maximum)."""
    output: Tensor
    """Sum of exp(score - maximum) * value."""


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
    maximum, weight, probs = _softmax_parts(torch.add(tiles.mask, scores, alpha=scale))
    output = _bmm(probs.view(-1, group, TILE).to(v.dtype), v).float().view(num_kv_heads, num_items, group, -1)
    part = _merge_rows(Partial(maximum, weight, output), tiles, num_rows)
    return (part.output / part.weight).transpose(0, 1).reshape(num_rows, num_heads, head_dim).to(q.dtype)


def _merge_rows(part: Partial, tiles: DecodeTiles, num_rows: int) -> Partial:
    # items [Hkv, N, G, .] -> rows [Hkv, rows, G, .]; index_add_ adds in item order, which is tile order
    if tiles.items_of_row is None:
        return part
    num_kv_heads, _, group, head_dim = part.output.shape
    padded = part.maximum.index_select(1, tiles.items_of_row).view(num_kv_heads, num_rows, -1, group, 1)
    maximum = padded.amax(2)
    factor = torch.exp(part.maximum - maximum.index_select(1, tiles.item_rows))
    weight = part.weight.new_zeros(num_kv_heads, num_rows, group, 1)
    output = part.output.new_zeros(num_kv_heads, num_rows, group, head_dim)
    weight.index_add_(1, tiles.item_rows, part.weight * factor)
    output.index_add_(1, tiles.item_rows, part.output * factor)
    return Partial(maximum, weight, output)


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
    maximum, weight, probs = _softmax_parts(scores.view(num_kv_heads, n * group, num_tiles, TILE))
    by_tile = torch.empty(num_kv_heads, num_tiles, n * group, TILE, dtype=v.dtype, device=v.device)
    by_tile.copy_(probs.transpose(1, 2))  # converts and reorders in one pass
    values = v[:, : num_tiles * TILE].reshape(-1, TILE, head_dim)
    output = _bmm(by_tile.view(-1, n * group, TILE), values).view(num_kv_heads, num_tiles, -1, head_dim)
    part = _merge_tiles(Partial(maximum.transpose(1, 2), weight.transpose(1, 2), output))
    merged = (part.output / part.weight).view(num_kv_heads, n, group, head_dim)
    return merged.transpose(0, 1).reshape(n, num_heads, head_dim)


def _merge_tiles(part: Partial) -> Partial:
    # [Hkv, tiles, rows, .] -> [Hkv, rows, .], in tile order as in _merge_rows
    maximum = part.maximum.amax(1, keepdim=True)
    factor = torch.exp(part.maximum - maximum)
    weight, output = part.weight[:, 0] * factor[:, 0], part.output[:, 0].float() * factor[:, 0]
    for tile in range(1, part.output.shape[1]):
        weight += part.weight[:, tile] * factor[:, tile]
        output += part.output[:, tile].float() * factor[:, tile]
    return Partial(maximum[:, 0], weight, output)


def _softmax_parts(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # overwrites scores [..., TILE] with exp(scores - maximum)
    maximum = scores.amax(-1, keepdim=True)
    probs = scores.sub_(maximum).exp_()
    return maximum, probs.sum(-1, keepdim=True), probs


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
