"""The largest steps are as large as any, and what they take is seen."""

import mmap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.gpu.memory.device import most_bytes
from pipeline.gpu.memory.rehearsal import QUERIES, Rehearsal, Shape
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from tests.gpu.driver import TINY, random_tensors

CPU = torch.device("cpu")
SHAPES = st.builds(
    Shape,
    max_num_seqs=st.integers(1, 20),
    max_num_batched_tokens=st.integers(1, 200),
    max_model_len=st.integers(1, 300),
    block_size=st.sampled_from([8, 16]),
)


@given(shape=SHAPES, num_kv_tokens=st.integers(0, 5000))
def test_every_step_is_one_that_a_scheduler_could_plan(shape: Shape, num_kv_tokens: int) -> None:
    rehearsal = Rehearsal(shape, num_kv_tokens, by_context=True)
    for rows, times in rehearsal._steps():
        plan = shape.plan(rows, rehearsal.num_blocks)
        assert times >= 1 and 1 <= len(plan.slots) <= shape.max_num_seqs
        assert len(plan.token_ids) <= shape.max_num_batched_tokens and set(plan.samples) == {True}
        tables: dict[int, dict[int, int]] = {}
        for slot, column, block in zip(plan.block_slots, plan.block_cols, plan.block_ids, strict=True):
            assert 0 <= block < rehearsal.num_blocks
            tables.setdefault(slot, {})[column] = block
        written = [
            tables[slot][column]
            for slot, start, count in zip(plan.slots, plan.num_computed, plan.num_tokens, strict=True)
            for column in range(start // shape.block_size, -(-(start + count) // shape.block_size))
        ]
        assert len(set(written)) == len(written), "no two rows write the same block"
        ends = [start + count for start, count in zip(plan.num_computed, plan.num_tokens, strict=True)]
        assert all(0 < end <= shape.max_model_len for end in ends)
        assert all(
            set(range(-(-end // shape.block_size))) == set(tables[slot]) for slot, end in enumerate(ends)
        )


def test_the_largest_have_what_the_options_allow() -> None:
    shape = Shape(64, 512, 8192, 16)
    assert sum(shape.widest().num_tokens) == 512 and len(shape.widest().num_tokens) == 64
    rows, times = shape.deepest()
    assert rows.num_tokens[0] * times >= QUERIES and rows.num_tokens[0] + rows.num_computed[0] == 8192
    assert shape.uneven().num_computed == [8191] + [0] * 63
    assert sum(shape.fullest(100_000).num_computed) == pytest.approx(100_000, rel=0.01)


def test_a_peak_is_seen_though_it_is_gone() -> None:
    def take_and_leave() -> None:
        with mmap.mmap(-1, 64 * 2**20) as memory:
            memory.write(bytes(64 * 2**20))

    before = most_bytes(CPU, lambda: None)
    assert 56 * 2**20 <= most_bytes(CPU, take_and_leave) - before < 200 * 2**20
    assert most_bytes(CPU, lambda: None) < before + 32 * 2**20


def test_a_step_that_takes_more_leaves_less_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampling op here takes 256 MiB for a moment: that much is left out of the division."""

    class Greedy:
        def __call__(self, logits: torch.Tensor, rows: object) -> torch.Tensor:
            torch.ones(self.num_bytes, dtype=torch.uint8)
            return logits.argmax(-1)

        num_bytes = 256 * 2**20

    class Modest(Greedy):
        num_bytes = 1

    monkeypatch.setattr("pipeline.gpu.memory.rehearsal.free_bytes", lambda device: 2**30)
    options = RunnerOptions(
        device="cpu", kv_memory=0.5, max_num_seqs=10**5, max_num_batched_tokens=8, backend="torch"
    )

    def blocks(op: type[Greedy], num_workers: int = 1) -> int:
        weights = random_tensors(TINY)
        runner = build_runner(TINY, weights, options, op, num_workers=num_workers)  # type: ignore[arg-type]
        return runner.capacity.num_blocks

    wide, modest, two = blocks(Greedy), blocks(Modest), blocks(Greedy, num_workers=2)
    block = TINY.num_layers * 2 * TINY.num_kv_heads * TINY.head_dim * 2 * 16
    assert 60 * 2**20 < (modest - wide) * block < 130 * 2**20, "half of 256 MiB less what else it takes"
    assert 110 * 2**20 < (wide - two) * block < 150 * 2**20, "two steps may run at once"
