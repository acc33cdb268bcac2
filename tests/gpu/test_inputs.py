"""StepPlan to tensors: positions, cache slots, tables and columns, against the obvious loops."""

import torch

from pipeline.gpu.device import Device, HostDevice
from pipeline.gpu.inputs import PreparedStep, SlotTable
from pipeline.messages import NO_TOKEN, Admitted, SamplingParams, StepPlan

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
    return SlotTable(4, 8, BLOCK, vocab_size=100, device=device or HostDevice(), max_num_tokens=32)


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
