"""The scheduler and its policies together: who is admitted, preempted and dropped, and when."""

from typing import Any

from pipeline.messages import DeviceReady, FinishReason
from tests.scheduler_world import MS, World, request, scheduler


def world(
    num_blocks: int = 100, max_num_seqs: int = 4, max_tokens: int = 64, block_size: int = 4, **options: Any
) -> World:
    return World(scheduler(DeviceReady(num_blocks, block_size, max_num_seqs, max_tokens), **options))


def test_priority_preempts_for_a_slot_and_the_victim_comes_back() -> None:
    w = world(max_num_seqs=1, policy="priority")
    w.add(request(0, max_tokens=8))
    w.step()
    w.add(request(1, max_tokens=2, priority=1, arrived_ms=1))
    w.run()
    assert w.order == [0, 1, 0]
    assert w.core.num_preemptions == 1


def test_priority_preempts_no_more_than_it_needs() -> None:
    w = world(num_blocks=6, policy="priority")
    w.add(*(request(k, prompt=6, max_tokens=9, arrived_ms=k) for k in range(3)))
    w.step()
    w.add(request(9, prompt=8, max_tokens=1, priority=1, arrived_ms=9))
    w.step()
    assert w.order == [0, 1, 2, 9]
    assert list(w.core.residents.running) == [0, 1], "9 needed two blocks, those of 2, and has ended"


def test_nobody_is_preempted_where_all_who_may_be_would_not_be_enough() -> None:
    w = world(num_blocks=6, policy="priority")
    w.add(request(0, prompt=12, max_tokens=9, priority=2), request(1, prompt=4, max_tokens=9))
    w.step()
    w.add(request(9, prompt=20, max_tokens=1, priority=1))
    w.step()
    assert w.core.num_preemptions == 0


def test_a_request_is_outranked_only_so_often() -> None:
    w = world(max_num_seqs=1, policy="priority", max_preemptions=2)
    w.add(request(0, max_tokens=30))
    for k in range(1, 6):
        w.step()
        w.add(request(k, max_tokens=1, priority=1, arrived_ms=k))
        w.step()
    w.run()
    assert w.core.num_preemptions == 2
    assert w.order == [0, 1, 0, 2, 0, 3, 4, 5]


def test_a_running_one_that_needs_a_block_takes_it_from_the_last_in_order() -> None:
    w = world(num_blocks=5, policy="sjf", sjf_tokens_per_s=1e3)
    w.add(request(0, prompt=8, max_tokens=12), request(1, prompt=8, max_tokens=3))
    w.step()
    w.step()  # both need a block, and one is left: the longer one gives way, though it was admitted later
    assert w.order[:2] == [1, 0]
    assert list(w.core.residents.running) == [1]
    w.run()
    assert w.order == [1, 0, 0]


def test_growth_preempts_whoever_was_preempted_least_often() -> None:
    w = world(num_blocks=12, block_size=2, max_preemptions=1)
    w.add(*(request(k, prompt=4, max_tokens=12, arrived_ms=k) for k in range(3)))
    w.run()
    counts = [w.order.count(k) - 1 for k in range(3)]
    assert max(counts) >= 1 and counts[0] == 0 and sum(counts) == w.core.num_preemptions
    assert sorted(w.order) != [0, 1, 2]


def test_a_preempted_one_returns_only_with_room_for_the_others_to_grow() -> None:
    w = world(num_blocks=6, block_size=2)
    w.add(request(0, prompt=4, max_tokens=8), request(1, prompt=4, max_tokens=4, arrived_ms=1))
    w.step()
    while not w.core.num_preemptions:
        w.step()
    victim = w.core.waiting.head(0)
    assert victim is not None and victim.request_id == 1
    needed = w.core.residents.num_needed(victim)
    assert needed == -(-len(victim.token_ids) // 2) + 1, "its own blocks, and one for the other"
    while not w.core.residents.fits(victim):
        assert w.step()
    w.run()
    assert w.core.num_preemptions == 1, "it came back once, and to stay"


def test_small_requests_pass_a_blocked_one_so_often_and_then_blocks_are_kept_for_it() -> None:
    w = world(num_blocks=10, max_bypasses=2, bypass_ms=1e6, max_num_seqs=8)
    w.add(request(0, prompt=24, max_tokens=5))
    w.step()
    w.add(request(1, prompt=36, max_tokens=1, arrived_ms=1))
    w.add(*(request(k, prompt=3, max_tokens=2, arrived_ms=k) for k in range(2, 6)))
    w.run()
    assert w.order == [0, 2, 3, 1, 4, 5]
    assert w.core.policies.bypass.num_passes == 2


def test_a_step_with_decode_rows_keeps_to_its_target() -> None:
    def cost_ns(plan: Any) -> int:
        return 2 * MS + len(plan.token_ids) * MS // 10

    core = scheduler(DeviceReady(1000, 16, 8, 512), itl_target_ms=10.0, min_prefill_tokens=16)
    w = World(core, cost_ns)
    w.add(request(0, prompt=100, max_tokens=400))
    for k in range(1, 10):  # prompts of all sizes, to learn from
        w.add(request(k, prompt=30 * k, max_tokens=3))
        for _ in range(8):
            w.step()
    w.plans.clear()
    w.add(request(50, prompt=1000, max_tokens=2))
    for _ in range(30):
        w.step()
    chunks = [len(plan.token_ids) for plan in w.plans if len(plan.token_ids) > 2]
    assert sum(chunks) >= 1000, "the prompt is done, in pieces"
    assert all(cost_ns(plan) <= 10.5 * MS for plan in w.plans)
    assert max(chunks) > 60, "and in pieces as large as the target allows"


def test_a_burst_becomes_one_batch() -> None:
    w = world(gather_ms=5.0)
    w.run([request(k, arrived_ms=10 + k) for k in range(3)])
    assert w.admitted == [(0, 15 * MS), (1, 15 * MS), (2, 15 * MS)]


def test_a_gather_window_holds_back_nobody_while_others_run() -> None:
    w = world(gather_ms=50.0)
    w.run([request(0, max_tokens=80), request(1, arrived_ms=60)])
    assert dict(w.admitted) == {0: 50 * MS, 1: 60 * MS}


def test_static_batches_run_until_all_have_ended_and_count_their_padding() -> None:
    w = world(max_num_seqs=2, batching="static")
    w.add(request(0, prompt=4, max_tokens=2), request(1, prompt=10, max_tokens=6), request(2, prompt=4))
    w.run()
    assert [at for _, at in w.admitted] == [0, 0, 6 * MS]
    assert w.core.num_padding_tokens == 6 + 4, (
        "a prompt's padding, and the four steps the first slept through"
    )


def test_a_static_batch_fills_over_several_steps() -> None:
    w = world(max_num_seqs=3, max_tokens=8, batching="static")
    w.add(*(request(k, prompt=8, max_tokens=9) for k in range(4)))
    w.run()
    assert [at // MS for _, at in w.admitted][:3] != [0, 0, 0]
    assert w.order[:3] == [0, 1, 2] and w.admitted[3][1] > 9 * MS


def test_who_waits_too_long_is_dropped_with_the_reason() -> None:
    w = world(max_num_seqs=1, max_wait_ms=20.0)
    w.add(request(0, max_tokens=50), request(1), request(2, patience_ms=10.0))
    w.run()
    assert w.order == [0]
    assert [(each.request_id, each.code, each.status) for each in w.rejected] == [
        (2, "wait_too_long", 503),
        (1, "wait_too_long", 503),
    ]
    assert w.core.is_idle and w.core.pool.num_free == 100


def test_the_scheduler_asks_to_be_woken_for_who_waits() -> None:
    w = world(max_num_seqs=1, max_wait_ms=20.0)
    assert w.core.wake_ns is None
    w.add(request(0, max_tokens=50))
    w.step()
    assert w.core.wake_ns is None
    w.add(request(1, arrived_ms=3))
    assert w.core.wake_ns == 23 * MS
    w.core.cancel(1, FinishReason.CANCELLED)
    assert w.core.wake_ns is None


def test_who_can_no_longer_be_in_time_is_shed_where_that_is_chosen() -> None:
    arrivals = [request(k, max_tokens=4, ttft_target_ms=6.0) for k in range(4)]
    last = world(max_num_seqs=1, policy="deadline")
    last.add(*arrivals)
    last.run()
    assert last.order == [0, 1, 2, 3] and not last.rejected
    shed = world(max_num_seqs=1, policy="deadline", late="shed")
    shed.add(*[request(k, max_tokens=4, ttft_target_ms=6.0) for k in range(4)])
    shed.run()
    assert shed.order == [0, 1] and {each.code for each in shed.rejected} == {"deadline_missed"}


def test_answers_teach_the_predictor_and_their_error_is_counted() -> None:
    w = world()
    w.add(*(request(k, max_tokens=4) for k in range(10)))
    w.run()
    lengths = w.core.policies.lengths
    assert (lengths.num_judged, lengths.error_tokens) == (10, 0)
    w.add(request(10, max_tokens=300))
    assert w.core._live[10].predicted_tokens == 4


def test_blocks_that_a_preemption_freed_are_not_given_to_a_newcomer_at_once() -> None:
    w = world(num_blocks=4, block_size=2)
    w.add(request(0, prompt=4, max_tokens=5), request(1, prompt=4, max_tokens=5, arrived_ms=1))
    w.step()
    w.add(request(2, prompt=1, max_tokens=2, arrived_ms=2))
    w.step()
    assert w.core.num_preemptions == 1 and w.core.pool.num_free == 1
    assert w.order == [0, 1], "2 fits, and would take the block that 0 needs next"


def test_a_prompt_of_higher_rank_is_computed_before_one_under_way_goes_on() -> None:
    w = world(max_tokens=8, policy="priority")
    w.add(request(0, prompt=40))
    w.step()
    w.add(request(1, prompt=6, priority=1, arrived_ms=1))
    w.step()
    assert w.plans[-1].request_ids == [1, 0] and w.plans[-1].num_tokens == [6, 2]


def test_a_prompt_of_the_same_rank_waits_until_the_one_under_way_is_done() -> None:
    w = world(max_tokens=8, policy="priority")
    w.add(request(0, prompt=40))
    w.step()
    w.add(request(1, prompt=6, arrived_ms=1))
    w.step()
    assert w.plans[-1].request_ids == [0] and w.plans[-1].num_tokens == [8]


def test_a_paused_one_gives_way_to_whoever_waits_and_comes_back() -> None:
    w = world(max_num_seqs=1)
    w.add(request(0, max_tokens=8))
    w.step()
    w.add(request(1, max_tokens=2, arrived_ms=1))
    w.step()
    assert list(w.core.residents.running) == [0], "who runs is not outranked"
    w.core.pause(0, is_paused=True)
    w.run()
    assert w.order == [0, 1] and w.core.num_preemptions == 1
    w.core.pause(0, is_paused=False)
    w.run()
    assert w.order == [0, 1, 0]


def test_a_paused_one_gives_way_to_one_that_grows() -> None:
    w = world(num_blocks=5)
    w.add(request(0, prompt=8, max_tokens=4), request(1, prompt=8, max_tokens=12, arrived_ms=1))
    w.step()
    w.core.pause(0, is_paused=True)
    for _ in range(12):
        w.step()
    assert w.core.num_preemptions == 1 and list(w.core.residents.running) == []
    w.core.pause(0, is_paused=False)
    w.run()
    assert w.order == [0, 1, 0]
