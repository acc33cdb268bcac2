"""Steps for prefill attention and its mass, and what must come of them by the words of gpu.api, in fp64."""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.gpu.api import StepInputs
from pipeline.gpu.kv.dtype import KvDtype
from tests.kernels.guarded import guarded, poisoned
from tests.kernels.heads import EXACT, ROUNDED
from tests.kernels.paged import paged

NOT_USED = torch.empty(0, dtype=torch.int64)
EVERYTHING = 1 << 40


class Row(NamedTuple):
    num_queries: int
    context_len: int
    sinks: int = 0
    window: int = 0


@dataclass
class Case:
    """A step, and the tiles of its launch."""

    rows: list[Row]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    kv_dtype: KvDtype = "fp32"
    dtype: str = "float32"
    block_size: int = 16
    has_windows: bool = False
    layer_window: int = 0
    tile_rows: int = 32
    tile_keys: int = 32
    seed: int = 0

    @property
    def tolerance(self) -> dict[str, float]:
        return EXACT if self.dtype == "float32" else ROUNDED


class Step:
    """The inputs of a case, and what the kernels have made of them."""

    def __init__(self, case: Case) -> None:
        self.case, self.scale = case, case.head_dim**-0.5
        generator = torch.Generator().manual_seed(case.seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        shape = case.kv_heads, case.head_dim
        self.paged = paged(
            [(random(row.context_len, *shape), random(row.context_len, *shape)) for row in case.rows],
            case.kv_dtype,
            case.block_size,
            case.seed,
        )
        self.edges = [0, *accumulate(row.num_queries for row in case.rows)]
        # as a part of one product of queries, keys and values
        wide = random(self.edges[-1], case.heads + 3, case.head_dim).to(getattr(torch, case.dtype))
        self.q = guarded(wide)[:, : case.heads]

    def attend(self) -> tuple[Tensor, Tensor]:
        """-> out [T, H, D], lse [T, H]; what was not written is NaN."""
        from pipeline.gpu.kernels.attention_prefill import attention_prefill
        from pipeline.gpu.kernels.config import LaunchConfig

        case = self.case
        tiles = LaunchConfig(constants={"TILE_ROWS": case.tile_rows, "TILE_KEYS": case.tile_keys})
        out = poisoned(tuple(self.q.shape), self.q.dtype)
        arguments = self.inputs(self.no_mass()), out, self.scale, case.layer_window, tiles
        lse = attention_prefill(self.q, self.paged.cache, *arguments)
        assert lse is not None
        return out, lse

    def weigh(self) -> Tensor:
        """-> mass [B, max_blocks], of a step whose other rows have some already."""
        from pipeline.gpu.kernels.attention_mass import attention_mass
        from pipeline.gpu.kernels.config import LaunchConfig

        case, mass = self.case, self.no_mass()
        tiles = LaunchConfig(constants={"TILE_ROWS": case.tile_rows, "TILE_KEYS": case.tile_keys})
        inputs, lse = self.inputs(mass), guarded(self.attend()[1])
        attention_mass(self.q, self.paged.cache, inputs, lse, self.scale, case.layer_window, tiles)
        return mass

    def no_mass(self) -> Tensor:
        return guarded(torch.zeros(self.paged.block_tables.shape, dtype=torch.int64))

    def inputs(self, mass: Tensor) -> StepInputs:
        rows, has_windows = self.case.rows, self.case.has_windows
        return StepInputs(
            token_ids=NOT_USED,
            positions=NOT_USED,
            slot_mapping=NOT_USED,
            query_start=_int32(self.edges),
            context_lens=_int32([row.context_len for row in rows]),
            block_tables=guarded(self.paged.block_tables),
            logits_rows=NOT_USED,
            sinks=_int32([row.sinks for row in rows]) if has_windows else None,
            windows=_int32([row.window for row in rows]) if has_windows else None,
            max_queries=max(row.num_queries for row in rows),
            mass=mass,
        )

    def check(self) -> None:
        """Every element of out that was to be written, and that no other was."""
        out, _ = self.attend()
        for number in range(len(self.case.rows)):
            found = out[self.edges[number] : self.edges[number + 1]]
            if not self._is_prefill(number):
                assert bool(found.isnan().all()), f"row {number} was written to"
                continue
            expected = torch.einsum("hqn,nhd->qhd", self._probabilities(number), self._values(number))
            torch.testing.assert_close(found.double(), expected, **self.case.tolerance)

    def check_mass(self) -> None:
        mass, size = self.weigh(), self.case.block_size
        keys_are_rounded = self.case.dtype == "bfloat16"
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if keys_are_rounded else {"rtol": 1e-5, "atol": 1e-5}
        for number in range(len(self.case.rows)):
            expected = torch.zeros(mass.shape[1], dtype=torch.float64)
            if self._is_prefill(number):
                of_entries = self._probabilities(number).sum((0, 1))
                padded = F.pad(of_entries, (0, len(expected) * size - len(of_entries)))
                expected = padded.view(-1, size).sum(1)
            torch.testing.assert_close(mass[number].double() / 2**32, expected, **tolerance)
            hidden = expected == 0
            assert not mass[number][hidden].any(), "what nobody sees has mass"

    def _is_prefill(self, number: int) -> bool:
        row = self.case.rows[number]
        return row.num_queries > 1 and row.context_len > 0

    def _values(self, number: int) -> Tensor:
        return self._repeated(self.paged.values[number])

    def _repeated(self, x: Tensor) -> Tensor:
        return x.double().repeat_interleave(self.case.heads // self.case.kv_heads, 1)

    def _probabilities(self, number: int) -> Tensor:
        # [H, queries, n]
        row = self.case.rows[number]
        q = self.q[self.edges[number] : self.edges[number + 1]].double()
        scores = torch.einsum("qhd,nhd->hqn", q, self._repeated(self.paged.keys[number])) * self.scale
        return scores.masked_fill(~self._is_seen(row), -torch.inf).softmax(-1)

    def _is_seen(self, row: Row) -> Tensor:
        case = self.case
        sinks, window = (row.sinks, row.window or EVERYTHING) if case.has_windows else (0, EVERYTHING)
        if case.layer_window:
            sinks, window = 0, min(window, case.layer_window)
        entries = torch.arange(row.context_len)
        query = entries[-row.num_queries :, None]
        return (entries <= query) & ((entries > query - window) | (entries < sinks))


def parts(case: Case, number: int, cuts: list[int]) -> list[Step]:
    """One row of a case alone, in chunks that end at these of its queries: over the same keys and values."""
    whole, row = Step(case), case.rows[number]
    steps = []
    for begin, end in zip([0, *cuts], [*cuts, row.num_queries], strict=True):
        context_len = row.context_len - row.num_queries + end
        chunk = row._replace(num_queries=end - begin, context_len=context_len)
        step = Step(replace(case, rows=[chunk]))
        start = whole.edges[number]
        step.q = guarded(whole.q[start + begin : start + end].contiguous())
        step.paged = whole.paged._replace(block_tables=whole.paged.block_tables[number : number + 1])
        steps.append(step)
    return steps


def any_case(draw: Any) -> Case:
    """Of a random.Random."""
    rows = []
    for _ in range(draw.randint(1, 4)):
        num_queries = draw.choice([0, 1, 2, draw.randint(3, 20), draw.randint(20, 70)])
        context_len = num_queries + draw.choice([0, 0, 1, draw.randint(1, 150)])
        if draw.random() < 0.1:
            context_len = 0
        rows.append(Row(num_queries, context_len, draw.choice([0, 4, 40]), draw.choice([0, 1, 30, 100])))
    rows.append(Row(2, 9))
    kv_heads = draw.choice([1, 2, 3])
    return Case(
        rows,
        heads=kv_heads * draw.randint(1, 9),
        kv_heads=kv_heads,
        head_dim=draw.choice([64, 80, 96, 128, 256]),
        kv_dtype=draw.choice(["fp32", "bf16", "int8", "fp8", "int4"]),
        dtype=draw.choice(["float32", "bfloat16"]),
        block_size=draw.choice([8, 16, 32, 64, 128]),
        has_windows=draw.random() < 0.5,
        layer_window=draw.choice([0, 0, 17, 50]),
        tile_rows=draw.choice([16, 32, 64]),
        tile_keys=draw.choice([16, 32, 64]),
        seed=draw.randrange(1 << 30),
    )


def _int32(values: list[int]) -> Tensor:
    return guarded(torch.tensor(values, dtype=torch.int32))
