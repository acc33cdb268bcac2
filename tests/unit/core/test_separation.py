"""Prefill and decode on workers of their own: what is handed over when, and when freed blocks are free."""

from typing import Any

from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.roles import SEPARATIONS
from pipeline.core.scheduling import Scheduler
from pipeline.messages import DeviceReady, FinishReason, StepPlan, TokenBatch
from tests.scheduler_world import EOS, request, sampled

PREFILL, DECODE = 0, 1


def split(num_blocks: int = 16, max_num_seqs: int = 4, **options: Any) -> Scheduler:
    device = DeviceReady(num_blocks, 4, max_num_seqs, 64)
    policies = make_policies(SchedulingOptions(**options), device)
    return Scheduler(device, (EOS,), policies, SEPARATIONS["split"])


class Desk:
    """Runs steps of either worker, one at a time unless told otherwise."""

    def __init__(self, core: Scheduler) -> None:
        self.core = core
        self.now_ns = 10

    def add(self, *requests: tuple[int, int, int]) -> None:
        for request_id, prompt, max_tokens in requests:
            assert self.core.add(request(request_id, prompt, max_tokens)) is None

    def plan(self, worker: int) -> StepPlan | None:
        self.now_ns += 10
        return self.core.plan(self.now_ns, worker)

    def must_plan(self, worker: int) -> StepPlan:
        plan = self.plan(worker)
        assert plan is not None
        return plan

    def apply(self, plan: StepPlan, token_id: int = 7) -> None:
        self.now_ns += 10
        self.core.apply(sampled(plan, self.now_ns, token_id), self.now_ns)

    def step(self, worker: int) -> StepPlan:
        plan = self.must_plan(worker)
        self.apply(plan)
        return plan

    def tell(self) -> TokenBatch:
        self.now_ns += 10
        batch = self.core.take_tokens(self.now_ns)
        assert batch is not None
        return batch

    @property
    def num_free(self) -> int:
        return self.core.pool.num_free


def test_a_sequence_is_handed_over_with_its_blocks_once_its_first_token_is_known() -> None:
    desk = Desk(split())
    desk.add((0, 6, 4))
    first = desk.must_plan(PREFILL)
    assert (first.worker, first.num_tokens, first.samples) == (PREFILL, [6], [True])
    assert desk.plan(PREFILL) is None and desk.plan(DECODE) is None, "its token is not known yet"
    desk.apply(first)
    assert desk.plan(PREFILL) is None, "it is no longer this worker's"
    then = desk.must_plan(DECODE)
    assert (then.worker, then.num_computed, then.token_ids) == (DECODE, [6], [7])
    assert (then.slots, then.admitted) == (first.slots, first.admitted)
    assert (then.block_cols, then.block_ids) == (first.block_cols, first.block_ids), "nothing is copied"
    desk.apply(then)
    assert not desk.must_plan(DECODE).admitted, "it is told once"


def test_step_ids_are_of_all_workers_and_results_come_in_any_order_of_workers() -> None:
    desk = Desk(split())
    desk.add((0, 6, 4))
    desk.step(PREFILL)
    desk.add((1, 6, 4))
    long, quick = desk.must_plan(PREFILL), desk.must_plan(DECODE)
    assert (long.step_id, quick.step_id) == (2, 3)
    desk.apply(quick)
    desk.apply(long)
    assert set(desk.must_plan(DECODE).request_ids) == {0, 1}


def test_prompts_are_chunked_and_only_the_last_chunk_hands_over() -> None:
    desk = Desk(split(num_blocks=40))
    desk.add((0, 100, 4))
    assert desk.step(PREFILL).num_tokens == [64]
    assert desk.plan(DECODE) is None
    assert desk.step(PREFILL).num_tokens == [36]
    assert desk.step(DECODE).num_computed == [100]


def test_cancelled_between_the_workers_it_is_gone_from_both() -> None:
    desk = Desk(split())
    desk.add((0, 6, 4))
    desk.step(PREFILL)
    desk.core.cancel(0, FinishReason.CANCELLED)
    assert desk.plan(DECODE) is None and desk.plan(PREFILL) is None
    assert desk.num_free == 16
    assert desk.tell().finish_reasons == [FinishReason.NONE, FinishReason.CANCELLED]
    assert desk.core.is_idle


def test_paused_between_the_workers_it_keeps_its_blocks_and_goes_on_when_resumed() -> None:
    desk = Desk(split())
    desk.add((0, 6, 4), (1, 6, 4))
    desk.step(PREFILL)
    desk.core.pause(0, is_paused=True)
    both = desk.step(DECODE)
    assert both.request_ids == [1] and len(both.admitted) == 2, "the worker learns of it all the same"
    desk.core.pause(0, is_paused=False)
    assert desk.step(DECODE).request_ids == [0, 1]


def test_ended_by_its_first_token_it_is_never_handed_over() -> None:
    desk = Desk(split())
    desk.add((0, 6, 4), (1, 6, 1))
    plan = desk.must_plan(PREFILL)
    desk.apply(plan, EOS)
    assert desk.plan(DECODE) is None
    assert desk.tell().finish_reasons == [FinishReason.STOP, FinishReason.STOP]


def test_preempted_in_decode_it_is_computed_again_by_prefill_and_handed_over_again() -> None:
    desk = Desk(split(num_blocks=4, max_num_seqs=2))
    desk.add((0, 7, 9), (1, 7, 9))
    desk.step(PREFILL)
    assert desk.step(DECODE).request_ids == [0, 1]
    plan = desk.step(DECODE)  # both need a third block, and there are four
    assert plan.request_ids == [0] and desk.core.num_preemptions == 1
    while 0 in desk.core.residents.running:
        desk.step(DECODE)
    again = desk.step(PREFILL)
    assert (again.request_ids, again.epochs, again.num_computed) == ([1], [1], [0])
    assert again.token_ids == [5] * 7 + [7] * 2, "the prompt, and the output known so far"
    assert desk.step(DECODE).request_ids == [1]


def test_freed_blocks_rest_while_a_step_in_flight_may_write_them() -> None:
    desk = Desk(split())
    desk.add((0, 6, 8), (1, 6, 8))
    desk.step(PREFILL)
    flying = desk.must_plan(DECODE)
    free = desk.num_free
    desk.core.cancel(0, FinishReason.CANCELLED)
    assert desk.num_free == free, "the decode worker may be writing them"
    desk.apply(flying)
    assert desk.num_free == free + 2


def test_freed_blocks_do_not_wait_for_steps_of_the_other_worker() -> None:
    desk = Desk(split())
    desk.add((0, 6, 8))
    desk.step(PREFILL)
    desk.step(DECODE)
    desk.add((1, 6, 8))
    desk.must_plan(PREFILL)
    free = desk.num_free
    desk.core.cancel(0, FinishReason.CANCELLED)
    assert desk.num_free == free + 2


def test_a_row_without_a_block_waits_for_resting_ones_and_nobody_is_preempted_for_it() -> None:
    desk = Desk(split(num_blocks=6))
    desk.add((0, 6, 9), (1, 6, 9), (2, 6, 9))
    desk.step(PREFILL)
    desk.step(DECODE)
    desk.step(DECODE)  # all hold 8 tokens in two blocks now, and none is free
    desk.core.cancel(2, FinishReason.CANCELLED)
    flying = desk.must_plan(DECODE)  # 0 and 1 take the two blocks that became free at once
    desk.core.cancel(1, FinishReason.CANCELLED)
    assert flying.request_ids == [0, 1] and desk.num_free == 0
    desk.add((3, 9, 1))
    assert desk.plan(PREFILL) is None, "three blocks rest, but none is free yet"
    desk.apply(flying)
    assert desk.step(PREFILL).request_ids == [3]
    assert desk.core.num_preemptions == 0


def test_a_growing_row_waits_for_resting_blocks() -> None:
    desk = Desk(split(num_blocks=4, max_num_seqs=2))
    desk.add((0, 7, 9), (1, 6, 9))
    desk.step(PREFILL)
    flying = desk.must_plan(DECODE)  # 0 has its 8th token in it
    desk.core.cancel(1, FinishReason.CANCELLED)
    assert desk.plan(DECODE) is None, "it needs a block, and two will be free soon"
    desk.apply(flying)
    assert desk.step(DECODE).request_ids == [0]
    assert desk.core.num_preemptions == 0


def test_times_name_the_worker_whose_totals_they_go_with() -> None:
    desk = Desk(split())
    desk.add((0, 6, 4))
    desk.step(PREFILL)
    first = desk.tell()
    desk.now_ns += 1000
    desk.step(DECODE)
    second = desk.tell()
    assert [times.worker for times in first.times + second.times] == [DECODE, DECODE]
    assert len(second.elapsed_ns) == 12
    for batch in (first, second):
        assert sum(batch.times[0].base_ns) + sum(batch.elapsed_ns[6:]) == batch.sent_ns
