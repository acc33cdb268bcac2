"""Contexts that drop blocks: who holds what, who waits for whom, and what a plan tells the device."""

from pipeline.core.scheduling import Scheduler
from pipeline.core.sequence import Sequence
from pipeline.messages import DeviceReady, StepPlan
from tests.scheduler_world import World, request, sampled, scheduler

WINDOW = {"kv_eviction": "sink_window", "kv_budget": 24, "kv_sinks": 4}
HEAVY = WINDOW | {"kv_eviction": "heavy_hitter"}


def core(num_blocks: int = 12, tokens: int = 16, **device: int) -> Scheduler:
    return scheduler(DeviceReady(num_blocks, 4, 4, tokens, **device))


def only(core: Scheduler) -> Sequence:
    (sequence,) = core.residents.running.values()
    return sequence


def taken(plan: StepPlan | None) -> StepPlan:
    assert plan is not None
    return plan


def test_a_prompt_longer_than_the_pool_goes_through_the_blocks_it_entered_with() -> None:
    w = World(core())
    w.add(request(0, prompt=200, max_tokens=20, **WINDOW))
    held: set[int] = set()
    while w.step():
        for sequence in w.core.residents.running.values():
            held |= set(sequence.blocks)
            assert len(sequence.blocks) <= 10
    assert len(held) <= 11 and w.core.is_idle and w.core.pool.num_free == 12
    assert sum(len(plan.token_ids) for plan in w.plans) == 219


def test_chunks_are_as_long_as_there_is_room() -> None:
    w = World(core(tokens=64))
    w.add(request(0, prompt=200, **WINDOW))
    w.step()
    assert only(w.core).num_entries == 12 * 4, "the budget and a chunk, but no more than there is"
    w.step()
    plan = w.plans[1]
    # query 48 sees 4 and 29 ... 48: entries 4 ... 27 can go
    assert plan.dropped_cols == [6, 5, 4, 3, 2, 1] and plan.num_tokens == [24]
    assert plan.block_cols == [6, 7, 8, 9, 10, 11], "they are written to again, as the last of the table"
    assert sorted(plan.block_ids) == sorted(w.plans[0].block_ids[1:7])


def test_decoding_takes_no_block_of_others_once_the_window_is_full() -> None:
    w = World(core(num_blocks=30))
    w.add(request(0, prompt=100, max_tokens=60, **WINDOW))
    while w.step() and only(w.core).num_output_tokens < 5:
        pass
    blocks = set(only(w.core).blocks)
    assert len(blocks) == 7, "what the last chunk took is given back"
    while w.step() and w.core.num_running:
        assert set(only(w.core).blocks) == blocks


def test_heavy_hitters_ask_once_and_wait_where_they_have_no_room() -> None:
    w = core(tokens=64)
    assert w.add(request(0, prompt=200, max_tokens=5, **HEAVY)) is None
    first = taken(w.plan(1))
    (question,) = first.questions
    assert first.num_tokens == [48] and question.num_drops == 6
    assert (question.row, question.first_col, question.end_col) == (0, 1, 10)
    assert w.plan(2) is None, "there is no room before the device has answered"
    w.apply(sampled(first, 3), 3)
    second = taken(w.plan(4))
    assert len(second.dropped_cols) == 6 and second.dropped_cols == sorted(second.dropped_cols, reverse=True)
    assert second.num_tokens == [24] and second.num_computed == [48]


def test_in_decode_there_is_a_block_of_slack_to_wait_in() -> None:
    w = core(num_blocks=30)
    assert w.add(request(0, prompt=20, max_tokens=60, **HEAVY)) is None
    plans: list[StepPlan] = []
    for now in range(1, 40):  # results come a step late
        plans.append(taken(w.plan(now)))
        if len(plans) > 1:
            w.apply(sampled(plans[-2], now), now)
    asking = [plan.num_computed[0] + 1 for plan in plans if plan.questions]
    assert asking[:3] == [25, 29, 33], "each time it outgrows its budget"
    assert len(only(w).blocks) <= 8


def test_the_answer_to_one_that_has_been_preempted_or_has_ended_is_dropped() -> None:
    w = core(tokens=64)
    assert w.add(request(0, prompt=200, max_tokens=5, **HEAVY)) is None
    plan = taken(w.plan(1))
    w._planners[0]._preempt(only(w))
    again = taken(w.plan(2))
    assert again.num_computed == [0] and again.admitted[0].num_dropped == 0 and again.questions
    w.apply(sampled(plan, 3), 3)
    assert only(w).num_dropped == 0 and only(w).is_asking
    w.apply(sampled(again, 4), 4)
    assert only(w).num_dropped == 24


def test_one_that_drops_is_computed_again_and_not_swapped() -> None:
    w = core(tokens=64, num_host_blocks=50, block_copy_ns=1)
    assert w.add(request(0, prompt=200, max_tokens=5, **WINDOW)) is None
    taken(w.plan(1))
    w._planners[0]._preempt(only(w))
    plan = taken(w.plan(2))
    assert plan.num_computed == [0] and not plan.saved_ids and not plan.loaded_ids


def test_kv_tokens_are_those_that_are_there() -> None:
    w = World(core(num_blocks=30))
    w.add(request(0, prompt=100, max_tokens=10, **WINDOW), request(1, prompt=10, max_tokens=4))
    while w.step():
        running = w.core.residents.running.values()
        assert w.core.num_kv_tokens == sum(each.num_entries for each in running)
    assert w.core.num_kv_tokens == 0 and w.core.residents.num_dropping == 0
    assert w.core.residents.num_dropped_blocks == (108 + 1 - 20) // 4 - 1
