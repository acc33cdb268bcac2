"""Rows of requests whose beginning is not in a recording."""

import pytest
from msgspec.structs import replace

from pipeline.bench.replay.begun import Begun
from pipeline.bench.samples import Load, Row, step_plan, text_batch, token_batch
from pipeline.checkpoint.card import ModelCard
from pipeline.messages import Cancel, DropQuestion, FinishReason, Logprobs, StepPlan, TokenBatch

OLD, NEW = Row(1, 5, is_last=False), Row(2, 0, is_last=False)


@pytest.fixture
def load(fake_card: ModelCard) -> Load:
    return Load.of(fake_card, num_rows=2)


def plan(load: Load) -> StepPlan:
    """An old request of three tokens in slot 0, and a new one of two in slot 1."""
    return replace(
        step_plan(load, 1, [OLD, NEW], 1),
        num_tokens=[3, 2],
        token_ids=[10, 11, 12, 20, 21],
        block_slots=[0, 1, 1],
        block_cols=[7, 0, 1],
        block_ids=[70, 80, 81],
        questions=[DropQuestion(0, 1, 0, 4), DropQuestion(1, 1, 0, 4)],
        pooled=[1],
    )


def test_tokens_and_text_of_others_are_left_out_and_counted(load: Load) -> None:
    begun = Begun()
    for message in (token_batch(load, 1, [OLD, NEW], 1), text_batch(load, 1, [OLD, NEW], 1)):
        left = begun.of(message)
        assert left is not None
        assert left.request_ids == [2]
        assert [times.request_id for times in left.times] == [2]
    assert begun.num_left_out == 2


def test_a_message_of_others_alone_is_not_sent(load: Load) -> None:
    begun = Begun()
    assert begun.of(token_batch(load, 1, [OLD], 1)) is None
    assert begun.num_left_out == 1


def test_whole_messages_are_passed_as_they_are(load: Load) -> None:
    begun = Begun()
    for message in (token_batch(load, 1, [NEW], 1), Cancel(9, FinishReason.CANCELLED)):
        assert begun.of(message) is message


def test_log_probabilities_go_with_their_rows(load: Load) -> None:
    told = Logprobs([1, 2], [10, 20], [-1.0, -2.0], [[], []], [[], []])
    left = Begun().of(replace(token_batch(load, 1, [OLD, NEW], 1), logprobs=told))
    assert isinstance(left, TokenBatch)
    assert left.logprobs == Logprobs([2], [20], [-2.0], [[]], [[]])


def test_a_plan_keeps_what_is_of_its_known_slots(load: Load) -> None:
    left = Begun().of(plan(load))
    assert isinstance(left, StepPlan)
    assert (left.slots, left.num_tokens, left.token_ids) == ([1], [2], [20, 21])
    assert (left.block_slots, left.block_cols, left.block_ids) == ([1, 1], [0, 1], [80, 81])
    assert (left.questions, left.pooled) == ([DropQuestion(0, 1, 0, 4)], [0])


def test_a_slot_is_known_from_whoever_takes_it_on(load: Load) -> None:
    """Its former owner's rows do not come again; those of another worker's slot are none of it."""
    begun = Begun()
    assert begun.of(plan(load)) is not None
    later = replace(step_plan(load, 2, [OLD, Row(2, 1, is_last=False)], 1), admitted=[])
    left = begun.of(later)
    assert left is not None
    assert left.request_ids == [2]
    assert begun.of(replace(later, worker=1)) is None
    assert begun.num_left_out == 1 + 1 + 2
