"""Which queries meet which part of the cache: the index work of paged attention, done once a step.

The context is cut into tiles of TILE positions at fixed offsets. Every (query, tile) pair gives a partial
result that depends on nothing else, and the partials of a query are added in tile order, whether the query
comes in a prefill chunk or as a decode row: so the result has the same bits however a prompt is chunked.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.gpu.api import StepInputs

TILE = 128
"""Positions a tile. Smaller tiles waste less on short contexts, larger ones need fewer partial results."""

MASKED = -1e30
"""Added to a score that must not count. Finite, so that a tile that is masked as a whole gives weight
exp(MASKED - max) = 0 and not NaN."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeTiles:
    """The rows with one query each, as N items: an item is one row and one tile of its context."""

    tokens: Tensor
    """[rows] int64: each row's index among the T tokens."""
    item_rows: Tensor
    """[N] int64, ascending."""
    block_ids: Tensor
    """[N * blocks per tile] int32."""
    mask: Tensor
    """[N, 1, TILE] fp32: 0 or MASKED."""
    items_of_row: Tensor | None
    """[rows * most tiles] int64, a row's last item repeated; None where every row has a single tile."""


class QueryBlock(NamedTuple):
    """Queries of one row whose positions lie in one tile, the last that they see."""

    start: int
    end: int
    """Span in the T tokens."""
    offset: int
    """Of the first query in its tile."""
    num_tiles: int


@dataclass(frozen=True, slots=True)
class PrefillTiles:
    """A row with several queries."""

    block_ids: Tensor
    """[most tiles * blocks per tile] int32."""
    blocks: list[QueryBlock]


@dataclass(frozen=True, slots=True)
class TilePlan:
    decode: DecodeTiles | None
    prefill: list[PrefillTiles]


def plan_tiles(inputs: StepInputs, block_size: int) -> TilePlan:
    """Waits for the device if the inputs are not in host memory."""
    starts = inputs.query_start.cpu().numpy().astype(np.int64)
    context_lens = inputs.context_lens.cpu().numpy().astype(np.int64)
    tables = inputs.block_tables.cpu().numpy()
    num_queries = np.diff(starts)
    device = inputs.block_tables.device
    single = np.flatnonzero(num_queries == 1)
    decode = None
    if single.size:
        decode = _plan_decode(starts[single], context_lens[single], tables[single], block_size, device)
    prefill = [
        _plan_prefill(
            int(starts[row]),
            int(num_queries[row]),
            int(context_lens[row]),
            inputs.block_tables[row],
            block_size,
        )
        for row in np.flatnonzero(num_queries > 1)
    ]
    return TilePlan(decode, prefill)


def _plan_decode(
    tokens: Ints, context_lens: Ints, tables: npt.NDArray[np.int32], block_size: int, device: torch.device
) -> DecodeTiles:
    num_rows = len(tokens)
    num_tiles = -(-context_lens // TILE)
    ends = np.cumsum(num_tiles)
    item_rows = np.repeat(np.arange(num_rows), num_tiles)
    item_tiles = np.arange(ends[-1]) - np.repeat(ends - num_tiles, num_tiles)
    positions = item_tiles[:, None] * TILE + np.arange(TILE)
    mask = np.where(positions < context_lens[item_rows, None], 0.0, MASKED).astype(np.float32)
    columns = np.minimum(positions[:, ::block_size] // block_size, tables.shape[1] - 1)
    most = int(num_tiles.max())
    padded = np.minimum((ends - num_tiles)[:, None] + np.arange(most), ends[:, None] - 1)
    return DecodeTiles(
        tokens=torch.from_numpy(tokens).to(device),
        item_rows=torch.from_numpy(item_rows).to(device),
        block_ids=torch.from_numpy(tables[item_rows[:, None], columns].ravel()).to(device),
        mask=torch.from_numpy(mask[:, None]).to(device),
        items_of_row=torch.from_numpy(padded.ravel()).to(device) if most > 1 else None,
    )


def _plan_prefill(
    start: int, num_queries: int, context_len: int, table: Tensor, block_size: int
) -> PrefillTiles:
    first = context_len - num_queries
    shift = start - first  # from position to token
    edges = [first, *range((first // TILE + 1) * TILE, context_len, TILE), context_len]
    blocks = [
        QueryBlock(begin + shift, end + shift, begin % TILE, begin // TILE + 1)
        for begin, end in pairwise(edges)
    ]
    columns = torch.arange(blocks[-1].num_tiles * TILE // block_size, device=table.device)
    return PrefillTiles(table[columns.clamp(max=len(table) - 1)], blocks)
