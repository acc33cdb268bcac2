"""Steps of attention over a cache of any KvDtype, and what they must give by a plain softmax in fp64."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.gpu.host.library import HostLibrary
from pipeline.gpu.kv.dtype import KvDtype
from pipeline.gpu.reference.quantise import dequantise, quantise
from tests.gpu.host.kernels import (
    THREADS,
    Cache,
    Floats,
    Ints,
    Words,
    attention,
    from_bf16,
    new_cache,
    to_bf16,
    write_kv,
)

MASS_UNITS = 2.0**32


class Row(NamedTuple):
    """One of a step. window 0: it sees all."""

    num_queries: int
    context: int
    sinks: int = 0
    window: int = 0


class Shape(NamedTuple):
    num_kv: int = 1
    group: int = 1
    """Query heads of each key/value head."""
    dim: int = 64
    block_size: int = 16
    kv_dtype: KvDtype = "bf16"


@dataclass
class Case:
    shape: Shape
    rows: list[Row]
    cache: Cache
    q: Words
    block_tables: Ints
    keys: list[Tensor]
    values: list[Tensor]
    """Of each row, [context, Hkv, D], as the cache gives them back."""
    layer_window: int = 0
    soft_cap: float = 0.0
    mass: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.mass = np.zeros(self.block_tables.shape, np.int64)


def make(library: HostLibrary, shape: Shape, rows: list[Row], seed: int = 0) -> Case:
    """Random contexts, in blocks scattered over a cache."""
    rng = np.random.default_rng(seed)
    columns = max(-(-row.context // shape.block_size) for row in rows)
    tables = rng.permutation(len(rows) * columns + 1)[:-1].reshape(len(rows), columns).astype(np.int32)
    cache = new_cache(tables.size + 1, shape.block_size, shape.num_kv, shape.dim, shape.kv_dtype)
    keys, values = [], []
    for table, row in zip(tables, rows, strict=True):
        k, v = (rng.normal(size=(row.context, shape.num_kv, shape.dim)).astype("f") for _ in range(2))
        write_kv(library, cache, k, v, slots_of(table, row.context, shape.block_size))
        keys.append(stored(k, shape.kv_dtype))
        values.append(stored(v, shape.kv_dtype))
    num_tokens = sum(row.num_queries for row in rows)
    q = to_bf16(2 * rng.normal(size=(num_tokens, shape.num_kv * shape.group, shape.dim)).astype("f"))
    return Case(shape, rows, cache, q, tables, keys, values)


def slots_of(table: Ints, context: int, block_size: int) -> npt.NDArray[np.int64]:
    position = np.arange(context)
    return table[position // block_size].astype(np.int64) * block_size + position % block_size


def stored(x: Floats, kv_dtype: KvDtype) -> Tensor:
    """What the cache gives back of [..., D], by the torch reference."""
    if kv_dtype == "bf16":
        return torch.from_numpy(from_bf16(to_bf16(x)))
    return dequantise(quantise(torch.from_numpy(x), kv_dtype), x.shape[-1], kv_dtype)


def run(library: HostLibrary, case: Case, threads: int = THREADS) -> Tensor:
    """[T, H, D]; adds to case.mass."""
    out = attention(
        library,
        case.cache,
        case.q,
        starts(case.rows),
        np.array([row.context for row in case.rows], np.int32),
        case.block_tables,
        threads,
        np.array([row.sinks for row in case.rows], np.int32),
        np.array([row.window for row in case.rows], np.int32),
        case.mass,
        case.layer_window,
        case.soft_cap,
    )
    return torch.from_numpy(out)


def starts(rows: list[Row]) -> Ints:
    return np.concatenate(([0], np.cumsum([row.num_queries for row in rows]))).astype(np.int32)


def alone(case: Case, number: int, query: int) -> Case:
    """One query of a row as a step of its own, over the same cache."""
    row = case.rows[number]
    token = starts(case.rows)[number] + query
    seen = row._replace(num_queries=1, context=row.context - row.num_queries + query + 1)
    q, table = (np.ascontiguousarray(x) for x in (case.q[token : token + 1], case.block_tables[number][None]))
    return Case(case.shape, [seen], case.cache, q, table, [], [], case.layer_window, case.soft_cap)


def expected(case: Case) -> tuple[Tensor, Tensor]:
    """Output [T, H, D] and mass [B, max_blocks], fp64."""
    outputs, masses = zip(*(_expected_row(case, number) for number in range(len(case.rows))), strict=True)
    return torch.cat(outputs), torch.stack(masses)


def _expected_row(case: Case, number: int) -> tuple[Tensor, Tensor]:
    row, begin = case.rows[number], starts(case.rows)[number]
    q = torch.from_numpy(from_bf16(case.q[begin : begin + row.num_queries])).double()
    k, v = (x[number].double().repeat_interleave(case.shape.group, 1) for x in (case.keys, case.values))
    scores = torch.einsum("qhd,khd->hqk", q, k) * case.shape.dim**-0.5
    if case.soft_cap:
        scores = case.soft_cap * torch.tanh(scores / case.soft_cap)
    probs = scores.masked_fill(~visible(row, case.layer_window), -torch.inf).softmax(-1)
    mass = torch.zeros(case.block_tables.shape[1], dtype=torch.float64)
    mass.index_add_(0, torch.arange(row.context) // case.shape.block_size, probs.sum((0, 1)))
    return torch.einsum("hqk,khd->qhd", probs, v), mass


def visible(row: Row, layer_window: int) -> Tensor:
    """[queries, context] bool, query by query as StepInputs and Ops.attention say."""
    seen = torch.zeros(row.num_queries, row.context, dtype=torch.bool)
    windows = [window for window in (row.window, layer_window) if window]
    sinks = 0 if layer_window else row.sinks
    for query, mask in enumerate(seen):
        limit = row.context - row.num_queries + query + 1
        mask[max(0, limit - min(windows, default=limit)) : limit] = True
        if windows:
            mask[: min(sinks, limit)] = True
    return seen
