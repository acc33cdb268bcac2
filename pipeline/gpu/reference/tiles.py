"""Which queries meet which part of the cache: the index work of paged attention, done once a step.

The context is cut into tiles of TILE entries at fixed offsets. Every (query, tile) pair gives a partial
result that depends on nothing else, and the partials of a query are added in tile order, whether the query
comes in a prefill chunk or as a decode row: so the result has the same bits however a prompt is chunked.
A tile of which a query sees nothing adds 0 to it: so it may be left out or not.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.gpu.api import StepInputs

TILE = 128
"""Entries a tile. Smaller tiles waste less on short contexts, larger ones need fewer partial results."""

MASKED = -1e30
"""Added to a score that must not count. Finite, so that a tile that is masked as a whole gives weight
exp(MASKED - max) = 0 and not NaN."""

ALL = 1 << 31
"""The window of a row that sees all."""

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
    mass_index: Tensor
    """[N * blocks per tile] int64: where each block's mass is counted in StepInputs.mass, flattened."""


class QueryBlock(NamedTuple):
    """Queries of one row whose entries lie in one tile, the last that they see."""

    start: int
    end: int
    """Span in the T tokens."""
    tiles: slice | Tensor
    """Which tiles of its row they see something of."""
    mask: Tensor
    """[queries, 1, n, TILE] fp32, of the last n tiles: 0 or MASKED."""


@dataclass(frozen=True, slots=True)
class PrefillTiles:
    """A row with several queries."""

    block_ids: Tensor
    """[tiles * blocks per tile] int32: of the tiles that any of them sees something of."""
    mass_index: Tensor
    """[tiles, blocks per tile] int64, as in DecodeTiles."""
    blocks: list[QueryBlock]


@dataclass(frozen=True, slots=True)
class StepTiles:
    decode: DecodeTiles | None
    prefill: list[PrefillTiles]


class TilePlan:
    """The tiles of a step: as its inputs say, and for each window that a layer has of its own.

    Waits for the device if the inputs are not in host memory.
    """

    def __init__(self, inputs: StepInputs, block_size: int, causal: Tensor) -> None:
        self.mass = inputs.mass
        self._rows = _Rows.of(inputs)
        self._block_size, self._causal = block_size, causal
        self._tiles: dict[int, StepTiles] = {}

    def tiles(self, window: int) -> StepTiles:
        """Of layers with this window; 0: as the inputs say."""
        if window not in self._tiles:
            rows = self._rows.within(window) if window else self._rows
            self._tiles[window] = _plan(rows, self._block_size, self._causal)
        return self._tiles[window]


def causal_mask(device: torch.device) -> Tensor:
    """[TILE, 1, 1, TILE] fp32: MASKED where the key is later than the query."""
    return torch.full((TILE, TILE), MASKED, device=device).triu(1)[:, None, None]


@dataclass(frozen=True, slots=True)
class _Rows:
    """StepInputs in host memory. A query at entry e sees entries up to e; of these the first `sinks` and the
    last `windows`.
    """

    starts: Ints
    num_queries: Ints
    context_lens: Ints
    sinks: Ints
    windows: Ints
    tables: npt.NDArray[np.int32]
    device: torch.device

    @classmethod
    def of(cls, inputs: StepInputs) -> "_Rows":
        edges, num_rows = _to_numpy(inputs.query_start), len(inputs.context_lens)
        nothing = np.zeros(num_rows, np.int64)
        windows = nothing if inputs.windows is None else _to_numpy(inputs.windows)
        return cls(
            starts=edges[:-1],
            num_queries=np.diff(edges),
            context_lens=_to_numpy(inputs.context_lens),
            sinks=nothing if inputs.sinks is None else _to_numpy(inputs.sinks),
            windows=np.where(windows == 0, ALL, windows),
            tables=inputs.block_tables.cpu().numpy(),
            device=inputs.block_tables.device,
        )

    def within(self, window: int) -> "_Rows":
        """The same rows in a layer with a window of its own: no more of the latest than the row sees."""
        shape = self.sinks.shape
        return replace(self, sinks=np.zeros(shape, np.int64), windows=np.minimum(self.windows, window))

    def sees_tile(self, tile: Ints, row: Ints | int, first_query: Ints | int) -> npt.NDArray[np.bool_]:
        """Whether the row's queries from entry first_query on see anything of the tile, up to their own."""
        is_recent = (tile + 1) * TILE > first_query + 1 - self.windows[row]
        return is_recent | (tile * TILE < self.sinks[row])

    def mask(self, entries: Ints, row: Ints | int, query: Ints) -> npt.NDArray[np.float32]:
        """0 where the query at entry `query` sees the entry; all broadcast."""
        is_recent = entries > query - self.windows[row]
        is_seen = (entries <= query) & (is_recent | (entries < self.sinks[row]))
        return np.where(is_seen, 0.0, MASKED).astype(np.float32)


def _plan(rows: _Rows, block_size: int, causal: Tensor) -> StepTiles:
    single = np.flatnonzero(rows.num_queries == 1)
    decode = _plan_decode(rows, single, block_size) if single.size else None
    several = np.flatnonzero(rows.num_queries > 1)
    return StepTiles(decode, [_plan_prefill(rows, int(row), block_size, causal) for row in several])


def _plan_decode(rows: _Rows, single: Ints, block_size: int) -> DecodeTiles:
    lens = rows.context_lens[single]
    num_tiles = -(-lens // TILE)
    item = np.repeat(np.arange(len(single)), num_tiles)
    tile = np.arange(len(item)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)
    is_seen = rows.sees_tile(tile, single[item], lens[item] - 1)
    item, tile = item[is_seen], tile[is_seen]
    entries = tile[:, None] * TILE + np.arange(TILE)
    mask = rows.mask(entries, single[item, None], lens[item, None] - 1)
    columns = _columns(rows, tile, block_size)
    return DecodeTiles(
        tokens=_on(rows.device, rows.starts[single]),
        item_rows=_on(rows.device, item),
        block_ids=_on(rows.device, rows.tables[single[item, None], columns].ravel()),
        mask=_on(rows.device, mask[:, None]),
        items_of_row=_items_of_row(item, rows.device),
        mass_index=_on(rows.device, (single[item, None] * rows.tables.shape[1] + columns).ravel()),
    )


def _items_of_row(item: Ints, device: torch.device) -> Tensor | None:
    counts = np.bincount(item)
    ends, most = np.cumsum(counts), int(counts.max())
    padded = np.minimum((ends - counts)[:, None] + np.arange(most), ends[:, None] - 1)
    return _on(device, padded.ravel()) if most > 1 else None


def _plan_prefill(rows: _Rows, row: int, block_size: int, causal: Tensor) -> PrefillTiles:
    end = int(rows.context_lens[row])
    first = end - int(rows.num_queries[row])
    tiles = np.arange(-(-end // TILE))
    tiles = tiles[rows.sees_tile(tiles, row, first)]
    edges = [first, *range((first // TILE + 1) * TILE, end, TILE), end]
    columns = _columns(rows, tiles, block_size)
    return PrefillTiles(
        block_ids=_on(rows.device, rows.tables[row, columns].ravel()),
        mass_index=_on(rows.device, row * rows.tables.shape[1] + columns),
        blocks=[_query_block(rows, row, tiles, edge, causal) for edge in pairwise(edges)],
    )


def _query_block(rows: _Rows, row: int, tiles: Ints, edge: tuple[int, int], causal: Tensor) -> QueryBlock:
    begin, end = edge  # entries
    shift = int(rows.starts[row] + rows.num_queries[row] - rows.context_lens[row])  # from entry to token
    if rows.windows[row] == ALL:
        past = causal[begin % TILE : begin % TILE + end - begin]
        return QueryBlock(begin + shift, end + shift, slice(0, begin // TILE + 1), past)
    seen = np.flatnonzero((tiles <= begin // TILE) & rows.sees_tile(tiles, row, begin))
    entries = tiles[seen, None] * TILE + np.arange(TILE)
    mask = rows.mask(entries, row, np.arange(begin, end)[:, None, None, None])
    return QueryBlock(begin + shift, end + shift, _on(rows.device, seen), _on(rows.device, mask))


def _columns(rows: _Rows, tiles: Ints, block_size: int) -> Ints:
    # [N] -> [N, blocks per tile] of the block table; past its end its last: nobody sees that far
    columns: Ints = tiles[:, None] * (TILE // block_size) + np.arange(TILE // block_size)
    return columns.clip(max=rows.tables.shape[1] - 1)


def _to_numpy(tensor: Tensor) -> Ints:
    return tensor.cpu().numpy().astype(np.int64)


def _on(device: torch.device, array: npt.NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(array).to(device)
