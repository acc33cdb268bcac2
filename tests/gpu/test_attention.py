"""TorchOps.attention against a plain softmax in fp64: windows, sinks, mass, and every kind of cache."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pipeline.gpu.api import LayerKv, StepInputs
from pipeline.gpu.kv.dtype import KvDtype, is_quantised
from pipeline.gpu.reference.ops import TorchOps
from pipeline.gpu.reference.quantise import dequantise, quantise

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 48
SCALE = HEAD_DIM**-0.5


class Row(NamedTuple):
    num_queries: int
    context_len: int
    sinks: int = 0
    window: int = 0


ROWS = [
    Row(1, 1),
    Row(1, 300),
    Row(1, 700, 4, 30),
    Row(1, 257, 0, 128),
    Row(40, 40),
    Row(130, 600, 20, 100),
    Row(90, 390, 150, 7),
    Row(5, 128),
]


class World:
    """Contexts of the rows in a cache whose blocks lie in any order, and the queries of a step."""

    def __init__(
        self,
        rows: list[Row],
        block_size: int = 16,
        kv_dtype: KvDtype = "fp32",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        self.rows, self.block_size, self.kv_dtype = rows, block_size, kv_dtype
        self.ops = TorchOps(CPU, block_size, kv_dtype)
        lens = [row.context_len for row in rows]
        self.k = [torch.randn(n, KV_HEADS, HEAD_DIM, generator=generator).to(dtype) for n in lens]
        self.v = [torch.randn(n, KV_HEADS, HEAD_DIM, generator=generator).to(dtype) for n in lens]
        self.q = [torch.randn(r.num_queries, HEADS, HEAD_DIM, generator=generator).to(dtype) for r in rows]
        most = -(-max(lens) // block_size)
        num_blocks = most * len(rows)
        self.tables = torch.randperm(num_blocks, generator=generator).view(len(rows), most).int()
        shape, stored = self.ops.kv_format(num_blocks, block_size, KV_HEADS, HEAD_DIM)
        self.kv = LayerKv(torch.zeros(shape, dtype=stored), torch.zeros(shape, dtype=stored))
        for k, v, table in zip(self.k, self.v, self.tables, strict=True):
            self.ops.write_kv(k, v, self.kv, slots(table, len(k), block_size))

    def attend(
        self, rows: list[Row], q: list[Tensor], tables: Tensor, layer_window: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Output [T, H * D] and mass [B, max_blocks] of a step with these rows."""
        mass = torch.zeros(tables.shape, dtype=torch.int64)
        edges = torch.tensor([0, *(row.num_queries for row in rows)]).cumsum(0)
        nothing = torch.zeros(0, dtype=torch.int64)  # attention reads none of these
        inputs = StepInputs(
            token_ids=nothing,
            positions=nothing,
            slot_mapping=nothing,
            query_start=edges.int(),
            context_lens=torch.tensor([row.context_len for row in rows], dtype=torch.int32),
            block_tables=tables,
            logits_rows=nothing,
            sinks=torch.tensor([row.sinks for row in rows], dtype=torch.int32),
            windows=torch.tensor([row.window for row in rows], dtype=torch.int32),
            mass=mass,
        )
        plan = self.ops.plan_attention(inputs)
        return self.ops.attention(torch.cat(q), self.kv, plan, SCALE, layer_window), mass

    def expected(self, number: int, layer_window: int = 0) -> tuple[Tensor, Tensor]:
        """Of one row: output [n, H, D] and mass [max_blocks], by its definition."""
        row = self.rows[number]
        k, v = (self.seen(x[number]).repeat_interleave(HEADS // KV_HEADS, 1) for x in (self.k, self.v))
        scores = torch.einsum("qhd,khd->hqk", self.q[number].double(), k) * SCALE
        probs = (scores + hidden(row, layer_window)).softmax(-1)
        entries = probs.sum((0, 1))
        mass = torch.zeros(self.tables.shape[1], dtype=torch.float64)
        mass.index_add_(0, torch.arange(len(entries)) // self.block_size, entries)
        return torch.einsum("hqk,khd->qhd", probs, v), mass

    def seen(self, x: Tensor) -> Tensor:
        """Keys or values as the cache gives them back, [n, Hkv, D] fp64."""
        kv_dtype = self.ops._kv_dtype
        return (
            dequantise(quantise(x, kv_dtype), HEAD_DIM, kv_dtype) if is_quantised(kv_dtype) else x
        ).double()


def slots(table: Tensor, num_entries: int, block_size: int) -> Tensor:
    entries = torch.arange(num_entries)
    return table[entries // block_size].long() * block_size + entries % block_size


def hidden(row: Row, layer_window: int) -> Tensor:
    """[queries, entries] fp64: 0, or -inf where the query does not see the entry."""
    sinks, window = row.sinks, row.window
    if layer_window:
        sinks, window = 0, min(layer_window, window or layer_window)
    visible = torch.zeros(row.num_queries, row.context_len, dtype=torch.bool)
    for query in range(row.num_queries):
        num_seen = row.context_len - row.num_queries + query + 1
        visible[query, :num_seen] = True
        if window:
            visible[query, sinks : max(sinks, num_seen - window)] = False
    return torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)


def by_row(rows: list[Row], out: Tensor) -> Iterator[Tensor]:
    return iter(out.view(-1, HEADS, HEAD_DIM).split([row.num_queries for row in rows]))


@pytest.mark.parametrize("layer_window", [0, 60])
@pytest.mark.parametrize("block_size", [16, 128])
def test_windows_sinks_and_mass_are_those_of_a_plain_softmax(block_size: int, layer_window: int) -> None:
    world = World(ROWS, block_size)
    out, mass = world.attend(ROWS, world.q, world.tables, layer_window)
    for number, found in enumerate(by_row(ROWS, out)):
        wanted, its_mass = world.expected(number, layer_window)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mass[number].double() / 2**32, its_mass, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kv_dtype", "dtype", "tolerance"),
    [
        ("bf16", torch.bfloat16, 0.02),
        ("int8", torch.bfloat16, 0.02),
        ("fp8", torch.bfloat16, 0.02),
        ("int4", torch.bfloat16, 0.02),
        ("int8", torch.float32, 1e-5),
        ("fp8", torch.float32, 1e-5),
        ("int4", torch.float32, 1e-5),
    ],
)
def test_a_quantised_cache_is_attended_as_what_it_stands_for(
    kv_dtype: KvDtype, dtype: torch.dtype, tolerance: float
) -> None:
    world = World(ROWS, 16, kv_dtype, dtype)
    out, _ = world.attend(ROWS, world.q, world.tables)
    for number, found in enumerate(by_row(ROWS, out)):
        torch.testing.assert_close(found.double(), world.expected(number)[0], rtol=tolerance, atol=tolerance)


def test_bits_and_mass_do_not_depend_on_chunks_or_neighbours() -> None:
    world = World(ROWS, 16, "int8", torch.bfloat16)
    out, mass = world.attend(ROWS, world.q, world.tables)
    for number, whole in enumerate(by_row(ROWS, out)):
        row, q, table = ROWS[number], world.q[number], world.tables[number : number + 1]
        parts, total = [], torch.zeros_like(table, dtype=torch.int64)
        for at in range(0, row.num_queries, 7):
            end = min(at + 7, row.num_queries)
            chunk = row._replace(num_queries=end - at, context_len=row.context_len - row.num_queries + end)
            part, its_mass = world.attend([chunk], [q[at:end]], table)
            parts.append(part)
            total += its_mass
        assert torch.cat(parts).view(-1, HEADS, HEAD_DIM).equal(whole), row
        assert total[0].equal(mass[number]), row


def test_all_that_a_query_attends_to_is_in_its_mass() -> None:
    world = World(ROWS)
    _, mass = world.attend(ROWS, world.q, world.tables)
    wanted = torch.tensor([row.num_queries * HEADS * 2.0**32 for row in ROWS], dtype=torch.float64)
    torch.testing.assert_close(mass.sum(1).double(), wanted, rtol=1e-6, atol=0)


def test_a_cache_of_another_precision_than_the_models() -> None:
    world = World(ROWS[:4], kv_dtype="bf16", dtype=torch.float32)
    out, _ = world.attend(ROWS[:4], world.q, world.tables)
    for number, found in enumerate(by_row(ROWS[:4], out)):
        wanted, _ = world.expected(number)
        assert 1e-5 < (found - wanted).abs().max() < 0.05
