"""Slots whose contexts drop blocks: entries, masks, and the weights that move with the table."""

import torch

from pipeline.gpu.inputs import SlotTable
from pipeline.gpu.kv.block_weights import least
from pipeline.messages import Admitted, DropQuestion, SamplingParams, StepPlan
from tests.gpu.test_inputs import BLOCK, plan_of, prepare, table

SAMPLING = SamplingParams(temperature=0)


def with_drops(plan: StepPlan, drops: list[tuple[int, int]], questions: list[DropQuestion]) -> StepPlan:
    plan.dropped_slots.extend(slot for slot, _ in drops)
    plan.dropped_cols.extend(column for _, column in drops)
    plan.questions.extend(questions)
    return plan


def step(
    rows: list[tuple[int, int, int, bool]],
    blocks: list[tuple[int, int, int]],
    admitted: list[Admitted],
    drops: list[tuple[int, int]] | None = None,
    questions: list[DropQuestion] | None = None,
) -> StepPlan:
    made = plan_of(rows, [1] * sum(count for _, _, count, _ in rows), blocks, admitted)
    return with_drops(made, drops or [], questions or [])


def test_tokens_go_to_their_entries_and_keep_their_positions() -> None:
    slots = table()
    prepare(slots, step([(1, 0, 14, True)], [(1, k, 20 + k) for k in range(4)], [Admitted(1, SAMPLING, 0)]))
    inputs = prepare(slots, step([(1, 14, 3, True)], [(1, 2, 9)], [], [(1, 2), (1, 1)])).inputs
    assert inputs.positions.tolist() == [14, 15, 16]
    assert inputs.context_lens.tolist() == [17 - 8]
    assert inputs.block_tables.tolist() == [[20, 23, 9]]
    assert inputs.slot_mapping.tolist() == [23 * BLOCK + 2, 23 * BLOCK + 3, 9 * BLOCK]
    again = prepare(slots, step([(1, 0, 2, True)], [(1, 0, 5)], [Admitted(1, SAMPLING, 1)])).inputs
    assert again.slot_mapping.tolist() == [5 * BLOCK, 5 * BLOCK + 1], "a newcomer has dropped nothing"


def test_one_that_is_handed_over_comes_with_what_it_has_dropped() -> None:
    slots = table()
    admitted = Admitted(2, SAMPLING, 0, num_dropped=8, sinks=4, window=8)
    inputs = prepare(slots, step([(2, 14, 1, True)], [(2, 0, 3), (2, 1, 6)], [admitted])).inputs
    assert inputs.positions.tolist() == [14] and inputs.context_lens.tolist() == [7]
    assert inputs.slot_mapping.tolist() == [6 * BLOCK + 2]


def test_masks_are_there_for_steps_that_have_a_window() -> None:
    slots = table()
    admitted = [Admitted(0, SAMPLING, 0), Admitted(3, SAMPLING, 1, sinks=4, window=8)]
    both = prepare(slots, step([(0, 0, 1, True), (3, 0, 1, True)], [(0, 0, 1), (3, 0, 2)], admitted)).inputs
    assert both.sinks is not None and both.windows is not None and both.mass is None
    assert both.sinks.tolist() == [0, 4] and both.windows.tolist() == [0, 8]
    plain = prepare(slots, step([(0, 1, 1, True)], [], [])).inputs
    assert plain.sinks is None and plain.windows is None


def weighed(slots: SlotTable, plan: StepPlan, mass: list[list[int]]) -> list[list[int]]:
    """The step's answers, with what its kernels would add."""
    ready = prepare(slots, plan)
    mass_of_step = ready.inputs.mass
    assert mass_of_step is not None and not mass_of_step.any()
    mass_of_step.add_(torch.tensor(mass))
    weights = slots.weigh(ready)
    assert weights is not None
    return least(weights.numpy(), plan.questions)


def test_the_blocks_of_least_weight_are_named_and_weights_move_with_the_table() -> None:
    slots = table()
    admitted = [Admitted(0, SAMPLING, 0), Admitted(1, SAMPLING, 1, is_weighed=True)]
    rows = [(0, 0, 2, False), (1, 0, 20, False)]
    blocks = [(0, 0, 40), *((1, k, k) for k in range(5))]
    ask = DropQuestion(1, 1, 1, 4)
    mass = [[99, 0, 0, 0, 0], [50, 30, 20, 25, 5]]
    assert weighed(slots, step(rows, blocks, admitted, None, [ask]), mass) == [[2]]
    # column 2 goes: 50, 30, 25, 5 are left, and 8 and 1 come to the first and the last of them
    plan = step([(1, 20, 1, True)], [(1, 4, 7)], [], [(1, 2)], [DropQuestion(0, 2, 0, 5)])
    assert weighed(slots, plan, [[8, 0, 0, 1, 3]]) == [[3, 4]]
    plan = step([(1, 21, 1, True)], [], [], None, [DropQuestion(0, 2, 0, 3)])
    assert weighed(slots, plan, [[0, 0, 6, 0, 0]]) == [[1, 2]]
    plan = step(
        [(1, 0, 9, True)], [], [Admitted(1, SAMPLING, 2, is_weighed=True)], None, [DropQuestion(0, 1, 0, 2)]
    )
    assert weighed(slots, plan, [[0, 0, 0]]) == [[0]], (
        "a newcomer's weigh nothing, and of equals the first goes"
    )


def test_steps_without_such_rows_ask_for_no_weights() -> None:
    slots = table()
    admitted = [Admitted(0, SAMPLING, 0), Admitted(1, SAMPLING, 1, is_weighed=True)]
    prepare(slots, step([(0, 0, 1, True), (1, 0, 1, True)], [(0, 0, 1), (1, 0, 2)], admitted))
    plan = step([(0, 1, 1, True)], [], [])
    ready = prepare(slots, plan)
    assert ready.inputs.mass is None and slots.weigh(ready) is None
