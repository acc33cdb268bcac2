"""StepPlan to tensors: positions, cache slots, tables and columns, against the obvious loops."""

import dataclasses
import random
import tracemalloc
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from pipeline.gpu.device import Device, HostDevice
from pipeline.gpu.graphs import GraphShape, graph_shapes
from pipeline.gpu.inputs import PreparedStep, SlotTable
from pipeline.messages import NO_TOKEN, Admitted, SamplingParams, StepPlan
from tests.gpu.recording_device import RecordingDevice
from tests.gpu.test_graphs import graphs_of

BLOCK = 4


def plan_of(
    rows: list[tuple[int, int, int, bool]],
    token_ids: list[int],
    blocks: list[tuple[int, int, int]],
    admitted: list[Admitted],
) -> StepPlan:
    """rows: (slot, num_computed, num_tokens, samples); blocks: (slot, column, id)."""
    return StepPlan(
        step_id=0,
        planned_ns=0,
        request_ids=[slot for slot, *_ in rows],
        epochs=[0] * len(rows),
        slots=[slot for slot, *_ in rows],
        num_computed=[computed for _, computed, _, _ in rows],
        num_tokens=[count for *_, count, _ in rows],
        samples=[samples for *_, samples in rows],
        token_ids=token_ids,
        admitted=admitted,
        block_slots=[slot for slot, _, _ in blocks],
        block_cols=[column for _, column, _ in blocks],
        block_ids=[block for _, _, block in blocks],
    )


def table(device: Device | None = None) -> SlotTable:
    return SlotTable(
        4, 8, BLOCK, vocab_size=100, device=device or HostDevice(), max_num_tokens=32, hidden_size=8
    )


def prepare(slots: SlotTable, plan: StepPlan) -> PreparedStep:
    step = slots.prepare(plan)
    slots.send(step)
    return step


def test_a_mixed_step_is_laid_out_row_by_row() -> None:
    slots = table()
    prepare(slots, plan_of([(1, 0, 5, False)], [1] * 5, [(1, 0, 30), (1, 1, 11)], []))
    step = prepare(
        slots,
        plan_of(
            [(3, 0, 3, True), (1, 5, 1, True), (0, 6, 2, False)],
            [7, 8, 9, 10, 11, 12],
            [(3, 0, 20), (0, 0, 5), (0, 1, 6)],
            [],
        ),
    )
    inputs = step.inputs
    assert inputs.token_ids.tolist() == [7, 8, 9, 10, 11, 12]
    assert inputs.positions.tolist() == [0, 1, 2, 5, 6, 7]
    assert inputs.slot_mapping.tolist() == [80, 81, 82, 11 * 4 + 1, 6 * 4 + 2, 6 * 4 + 3]
    assert inputs.query_start.tolist() == [0, 3, 4, 6]
    assert inputs.context_lens.tolist() == [3, 6, 8]
    assert inputs.block_tables.tolist() == [[20, 0], [30, 11], [5, 6]]
    assert inputs.logits_rows.tolist() == [2, 3]
    assert step.sample_slots.tolist() == [3, 1]
    assert step.rows.position.tolist() == [2, 5]


def test_an_unknown_input_token_is_the_last_one_sampled_in_its_slot() -> None:
    slots = table()
    earlier = prepare(slots, plan_of([(2, 0, 1, True), (0, 2, 1, True)], [1, 1], [(2, 0, 3), (0, 0, 1)], []))
    slots.remember(earlier, torch.tensor([77, 55]))
    step = prepare(
        slots,
        plan_of(
            [(0, 3, 1, True), (1, 0, 2, True), (2, 1, 1, True)],
            [NO_TOKEN, 4, 5, NO_TOKEN],
            [(0, 0, 1), (1, 0, 2), (2, 0, 3)],
            [],
        ),
    )
    assert step.inputs.token_ids.tolist() == [55, 4, 5, 77]


def test_an_admitted_sequence_brings_its_sampling_and_takes_the_slot_over() -> None:
    slots = table()
    first = SamplingParams(temperature=0.5, top_k=4, top_p=0.25, seed=2**64 - 2)
    prepare(slots, plan_of([(2, 0, 4, False)], [1] * 4, [(2, 0, 9)], [Admitted(2, first, 0)]))
    step = prepare(slots, plan_of([(2, 4, 1, True)], [1], [(2, 1, 3)], []))
    rows = step.rows
    assert (rows.temperature.item(), rows.top_k.item(), rows.top_p.item()) == (0.5, 4, 0.25)
    assert rows.seed.item() == -2  # the low 64 bits
    second = SamplingParams(temperature=0.0, seed=5)
    step = prepare(slots, plan_of([(2, 0, 1, True)], [1], [(2, 0, 1)], [Admitted(2, second, 0)]))
    assert (step.rows.temperature.item(), step.rows.top_k.item(), step.rows.seed.item()) == (0.0, 0, 5)
    assert step.inputs.block_tables.tolist() == [[1]]


def test_a_step_for_a_graph_is_filled_up_with_rows_that_are_empty() -> None:
    slots = table()
    prepare(
        slots, plan_of([(1, 0, 5, True), (2, 0, 1, True)], [1] * 6, [(1, 0, 30), (1, 1, 11), (2, 0, 9)], [])
    )
    graphs = graphs_of([GraphShape(4, 3)])
    admitted = [Admitted(2, SamplingParams(), 0, sinks=4, window=8)]
    plan = plan_of([(1, 5, 1, True), (2, 1, 1, True)], [NO_TOKEN, 7], [], admitted)
    step = slots.prepare(plan, graphs)
    inputs = step.inputs
    assert step.shape == (4, 3) and inputs.max_queries == 1
    assert inputs.token_ids.tolist() == [NO_TOKEN, 7, 0, 0] and step.token_slots.tolist() == [1, 2, 0, 0]
    assert inputs.positions.tolist() == [5, 1, 0, 0]
    assert inputs.slot_mapping.tolist() == [11 * BLOCK + 1, 9 * BLOCK + 1, -1, -1]
    assert inputs.query_start.tolist() == [0, 1, 2, 3, 4] and inputs.logits_rows.tolist() == [0, 1, 2, 3]
    assert inputs.context_lens.tolist() == [6, 2, 0, 0]
    assert inputs.block_tables.tolist() == [[30, 11, 0], [9, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert inputs.sinks is not None and inputs.windows is not None
    assert inputs.sinks.tolist() == [0, 4, 0, 0] and inputs.windows.tolist() == [0, 8, 0, 0]
    assert step.sample_slots.tolist() == [1, 2] and step.rows.position.tolist() == [5, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"samples": [True, False]},
        {"num_tokens": [1, 2], "token_ids": [1, 2, 3]},
        {"admitted": [Admitted(1, SamplingParams(), 0, is_weighed=True)]},
        {"num_computed": [5, 13]},
    ],
)
def test_what_is_no_plain_decode_step_fits_no_graph(change: dict[str, Any]) -> None:
    plan = plan_of([(1, 5, 1, True), (2, 1, 1, True)], [4, 7], [(1, 0, 30), (1, 1, 11), (2, 0, 9)], [])
    graphs = graphs_of([GraphShape(2, 3)])
    assert table().prepare(plan, graphs).shape == (2, 3)
    assert table().prepare(msgspec.structs.replace(plan, **change), graphs).shape is None


@pytest.mark.parametrize("seed", range(8))
def test_a_device_with_memory_of_its_own_gets_the_same_values(seed: int) -> None:
    rng, device = random.Random(seed), RecordingDevice()
    here, there = table(), table(device)
    graphs = graphs_of(graph_shapes(4, 8))
    for _ in range(12):
        plan = random_plan(rng)
        expected = here.prepare(plan, graphs)
        here.send(expected)
        with device.active():
            step = there.prepare(plan, graphs)
            there.send(step)
            there.launched(step, device.finish([]))
        assert values_of(step) == values_of(expected)
        sampled = torch.randint(100, expected.sample_slots.shape)
        for slots, each in ((here, expected), (there, step)):
            slots.remember(each, sampled)


def random_plan(rng: random.Random) -> StepPlan:
    """Rows of prompts, of decode, or mixed; some are new, see a window, or have rules."""
    some = sorted(rng.sample(range(4), rng.randint(1, 4)))
    is_decode = rng.random() < 0.5
    rows = [
        (s, rng.randint(0, 20), 1 if is_decode else rng.randint(1, 8), is_decode or rng.random() < 0.7)
        for s in some
    ]
    token_ids = [rng.choice([NO_TOKEN, rng.randrange(100)]) for *_, count, _ in rows for _ in range(count)]
    blocks = [(slot, column, rng.randrange(50)) for slot in some for column in range(8)]
    kinds: list[dict[str, Any]] = [
        {},
        {"min_p": 0.1},
        {"logit_bias": ((3, 1.0),), "allowed_token_ids": tuple(range(50))},
    ]
    admitted = [
        Admitted(
            slot,
            SamplingParams(seed=rng.randrange(2**60), **rng.choice(kinds)),
            0,
            window=rng.choice([0, 0, 8]),
        )
        for slot in some
        if rng.random() < 0.3
    ]
    return plan_of(rows, token_ids, blocks, admitted)


def values_of(part: Any) -> Any:
    """Of a prepared step: its tensors as lists."""
    if isinstance(part, Tensor):
        return part.tolist()
    if dataclasses.is_dataclass(part):
        return {f.name: values_of(getattr(part, f.name)) for f in dataclasses.fields(part)}
    return [values_of(each) for each in part] if isinstance(part, tuple) else part


@pytest.mark.parametrize("device", [HostDevice(), RecordingDevice()])
def test_what_a_step_allocates_does_not_go_by_its_rows(device: Device) -> None:
    slots = SlotTable(64, 8, BLOCK, vocab_size=100, device=device, max_num_tokens=64, hidden_size=8)

    def num_allocated(num_rows: int) -> int:
        rows = [(slot, 5, 1, True) for slot in range(num_rows)]
        plan = plan_of(rows, [NO_TOKEN] * num_rows, [], [])
        slots.prepare(plan)  # the first makes what is kept
        tracemalloc.start()
        step = slots.prepare(plan)
        count = sum(each.count for each in tracemalloc.take_snapshot().statistics("filename"))
        tracemalloc.stop()
        assert len(step.sample_slots) == num_rows
        return count

    few, many = num_allocated(2), num_allocated(64)
    assert many <= few + 8 and many < 250
