"""The scheduler's rules, one by one; the property test has the combinations."""

from typing import Any

import msgspec
import pytest

from pipeline.core.arrived import ArrivedIds
from pipeline.core.block_pool import BlockPool, blocks_for
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.scheduling import Scheduler
from pipeline.messages import (
    NO_TOKEN,
    DeviceReady,
    FinishReason,
    Logprobs,
    SampledBatch,
    SamplingParams,
    StepPlan,
    TokenBatch,
    TokenizedRequest,
)
from pipeline.runtime.testing import FakeRunner

EOS = 2


def request(request_id: int, prompt: int, max_tokens: int, **sampling: Any) -> TokenizedRequest:
    params = SamplingParams(max_tokens=max_tokens, seed=request_id, **sampling)
    return TokenizedRequest(request_id, [5] * prompt, params, 0, 10, (1, 2, 7))


def scheduler(
    num_blocks: int = 8, block_size: int = 4, max_num_seqs: int = 4, max_tokens: int = 64
) -> Scheduler:
    device = DeviceReady(num_blocks, block_size, max_num_seqs, max_tokens)
    return Scheduler(device, (EOS,), make_policies(SchedulingOptions(max_bypasses=0), device))


def running(core: Scheduler) -> list[int]:
    return list(core.residents.running)


def waiting(core: Scheduler) -> list[int]:
    return [each.request_id for each in core.policies.order.candidates(0)]


def sampled(plan: StepPlan, token_id: int | None = None) -> SampledBatch:
    """The step's result, all rows `token_id` or what FakeRunner would say."""
    rows = [k for k, samples in enumerate(plan.samples) if samples]
    tokens = [7 if token_id is None else token_id for _ in rows]
    now = plan.planned_ns
    return SampledBatch(
        plan.step_id,
        [plan.request_ids[k] for k in rows],
        [plan.epochs[k] for k in rows],
        tokens,
        (now, now + 1, now + 2, now + 3, now + 4),
    )


def plan(core: Scheduler, now_ns: int = 100) -> StepPlan:
    step = core.plan(now_ns)
    assert step is not None
    return step


def step(core: Scheduler, token_id: int | None = None, now_ns: int = 100) -> TokenBatch | None:
    core.apply(sampled(plan(core, now_ns), token_id), now_ns + 5)
    return core.take_tokens(now_ns + 6)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_blocks_are_ceil_of_tokens(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 16) == blocks


def test_a_full_prompt_takes_its_next_block_when_the_next_token_is_written() -> None:
    core = scheduler(block_size=4)
    core.add(request(0, prompt=4, max_tokens=3))
    assert plan(core).block_ids == [0]
    assert plan(core).block_ids == [1]
    assert core.pool.num_owned == 2


def test_prefill_and_decode_share_a_step() -> None:
    core = scheduler()
    core.add(request(0, prompt=3, max_tokens=5))
    step(core)
    core.add(request(1, prompt=6, max_tokens=5))
    mixed = plan(core)
    assert (mixed.request_ids, mixed.num_tokens) == ([0, 1], [1, 6])
    assert mixed.samples == [True, True]
    assert mixed.token_ids == [7, 5, 5, 5, 5, 5, 5]


def test_a_long_prompt_is_prefilled_in_chunks_while_others_decode() -> None:
    core = scheduler(num_blocks=16, max_tokens=8)
    core.add(request(0, prompt=2, max_tokens=9))
    step(core)
    core.add(request(1, prompt=20, max_tokens=2))
    chunks = [plan(core) for _ in range(3)]
    assert [c.num_tokens for c in chunks] == [[1, 7], [1, 7], [1, 6]]
    assert [c.samples for c in chunks] == [[True, False], [True, False], [True, True]]
    assert [c.num_computed[1] for c in chunks] == [0, 7, 14]


def test_a_decode_row_planned_ahead_reads_its_token_on_the_device() -> None:
    core = scheduler()
    core.add(request(0, prompt=3, max_tokens=5))
    assert plan(core).token_ids == [5, 5, 5]
    ahead = plan(core)
    assert (ahead.token_ids, ahead.num_computed) == ([NO_TOKEN], [3])


def test_no_row_is_planned_past_max_tokens() -> None:
    core = scheduler()
    core.add(request(0, prompt=3, max_tokens=2))
    plan(core), plan(core)
    assert core.plan(100) is None


def test_eos_stops_unless_ignored() -> None:
    core = scheduler()
    core.add(request(0, prompt=3, max_tokens=5))
    core.add(request(1, prompt=3, max_tokens=5, ignore_eos=True))
    batch = step(core, EOS)
    assert batch is not None
    assert batch.finish_reasons == [FinishReason.STOP, FinishReason.NONE]
    assert batch.token_ids == [EOS, EOS]


def test_the_last_token_ends_with_length() -> None:
    core = scheduler()
    core.add(request(0, prompt=3, max_tokens=1))
    batch = step(core)
    assert batch is not None and batch.finish_reasons == [FinishReason.LENGTH]
    assert core.is_idle and core.pool.num_free == 8


def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    core = scheduler(num_blocks=2, block_size=4)
    assert core.add(request(0, prompt=5, max_tokens=4)) is None
    refused = core.add(request(1, prompt=5, max_tokens=5))
    assert refused is not None and refused.code == "kv_capacity_exceeded" and refused.status == 400
    assert "holds 8 tokens" in refused.message and "needs 9" in refused.message


def test_the_youngest_is_preempted_and_recomputed_and_the_oldest_goes_on() -> None:
    core = scheduler(num_blocks=4, block_size=2)
    core.add(request(0, prompt=4, max_tokens=4))
    core.add(request(1, prompt=4, max_tokens=4))
    step(core)
    assert core.num_preemptions == 0
    after = plan(core)
    assert core.num_preemptions == 1
    assert after.request_ids == [0], "blocks just freed are not given away in the same step"
    assert waiting(core) == [1]


def test_a_preempted_sequence_resumes_only_when_all_it_has_fits() -> None:
    core = scheduler(num_blocks=4, block_size=2)
    core.add(request(0, prompt=4, max_tokens=4))
    core.add(request(1, prompt=4, max_tokens=4))
    step(core)
    while 0 in running(core):
        step(core)
        assert running(core) in ([0], [])
    resumed = plan(core)
    assert resumed.request_ids == [1] and resumed.num_computed == [0] and resumed.num_tokens == [5]
    assert resumed.epochs == [1]


def test_a_result_of_before_the_preemption_is_dropped() -> None:
    core = scheduler(num_blocks=4, block_size=2)
    core.add(request(0, prompt=4, max_tokens=5))
    core.add(request(1, prompt=4, max_tokens=5))
    first = plan(core)
    second = plan(core)  # needs two blocks: preempts request 1, whose first token is still in flight
    assert second.request_ids == [0]
    core.apply(sampled(first), 105)
    batch = core.take_tokens(106)
    assert batch is not None and batch.request_ids == [0]


def test_cancel_is_a_no_op_for_whoever_is_gone_and_remembered_for_whoever_comes() -> None:
    core = scheduler()
    core.add(request(0, prompt=3, max_tokens=1))
    step(core)
    core.cancel(0, FinishReason.CANCELLED)
    core.cancel(0, FinishReason.CANCELLED)
    assert core.is_idle
    core.cancel(1, FinishReason.CANCELLED)
    core.cancel(1, FinishReason.CANCELLED)
    assert core.add(request(1, prompt=3, max_tokens=1)) is None
    batch = core.take_tokens(100)
    assert batch is not None and batch.finish_reasons == [FinishReason.CANCELLED]
    assert core.is_idle


def test_cancel_before_a_rejection_leaves_nothing_behind() -> None:
    core = scheduler()
    core.cancel(0, FinishReason.CANCELLED)
    core.add_rejected(0)
    core.cancel(0, FinishReason.CANCELLED)
    assert core.is_idle and not core._tombstones


def test_cancel_in_flight_frees_the_blocks_at_once_and_drops_the_late_row() -> None:
    core = scheduler()
    core.add(request(0, prompt=3, max_tokens=9))
    flying = plan(core)
    core.cancel(0, FinishReason.CANCELLED)
    assert core.pool.num_free == 8
    core.apply(sampled(flying), 105)
    batch = core.take_tokens(106)
    assert batch is not None and batch.finish_reasons == [FinishReason.CANCELLED]
    assert core.is_idle


def test_a_paused_request_keeps_its_blocks_and_lets_others_pass() -> None:
    core = scheduler(max_num_seqs=1)
    core.add(request(0, prompt=3, max_tokens=9))
    core.add(request(1, prompt=3, max_tokens=9))
    core.pause(0, is_paused=True)
    assert plan(core).request_ids == [1]
    core.pause(0, is_paused=False)
    assert waiting(core) == [0]


def test_a_paused_running_request_has_no_rows_until_it_goes_on() -> None:
    core = scheduler()
    core.add(request(0, prompt=3, max_tokens=9))
    core.add(request(1, prompt=3, max_tokens=9))
    step(core)
    core.pause(0, is_paused=True)
    assert plan(core).request_ids == [1]
    core.pause(0, is_paused=False)
    assert plan(core).request_ids == [0, 1]


def test_more_decode_rows_than_the_budget_holds_go_on_oldest_first() -> None:
    core = scheduler(max_tokens=2)
    for k in range(3):
        core.add(request(k, prompt=1, max_tokens=9))
    assert plan(core).request_ids == [0, 1]
    core.pause(0, is_paused=True)
    assert plan(core).request_ids == [1, 2]
    core.pause(0, is_paused=False)
    assert plan(core).request_ids == [0, 1]


def test_started_once_and_times_add_up() -> None:
    core = scheduler()
    core.add(request(0, prompt=3, max_tokens=2))
    first, last = step(core, now_ns=100), step(core, now_ns=200)
    assert first is not None and last is not None
    assert [s.request_id for s in first.started] == [0] and last.started == []
    (times,) = last.times
    segments = list(times.base_ns)
    segments[3:9] = [a + b for a, b in zip(segments[3:9], last.elapsed_ns, strict=True)]
    assert sum(segments) == last.sent_ns - 0
    assert segments[:3] == [1, 2, 7]


def test_pool_refuses_a_double_free() -> None:
    pool = BlockPool(2)
    taken = pool.take(2)
    assert taken is not None and pool.take(1) is None
    pool.give_back(taken)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.give_back(taken[:1])


def test_arrived_ids_forgets_what_is_contiguous() -> None:
    arrived = ArrivedIds()
    for request_id in (1, 2, 0, 5):
        arrived.add(request_id)
    assert [k in arrived for k in range(7)] == [True, True, True, False, False, True, False]
    assert arrived._beyond == {5}


def test_fake_runner_samples_by_seed_and_position_alone() -> None:
    core = scheduler()
    core.add(request(0, prompt=3, max_tokens=2))
    core.add(request(1, prompt=3, max_tokens=2))
    runner = FakeRunner()
    a, b = runner.launch(plan(core)).token_ids_sync()
    assert a != b


def test_stop_ids_end_a_sequence_as_its_own_end_does() -> None:
    core = scheduler()
    for request_id, ignore_eos in ((0, False), (1, True)):
        params = SamplingParams(max_tokens=9, stop_token_ids=(42,), ignore_eos=ignore_eos)
        core.add(TokenizedRequest(request_id, [5], params, 0, 10, (1, 2, 7)))
    batch = step(core, token_id=EOS)
    assert batch is not None and batch.finish_reasons == [FinishReason.STOP, FinishReason.NONE]
    batch = step(core, token_id=42)
    assert batch is not None and batch.finish_reasons == [FinishReason.STOP]
    assert core.is_idle


def test_logprobs_go_with_the_tokens_that_are_still_wanted() -> None:
    core = scheduler()
    for request_id in (0, 1):
        core.add(request(request_id, 3, 9))
    planned = plan(core)
    core.cancel(0, FinishReason.CANCELLED)
    told = Logprobs([0, 1], [7, 7], [-0.5, -0.25], [[7], [7, 8]], [[-0.5], [-0.25, -3.0]])
    core.apply(msgspec.structs.replace(sampled(planned), logprobs=told), 200)
    batch = core.take_tokens(201)
    assert batch is not None
    assert batch.logprobs == Logprobs([1], [7], [-0.25], [[7, 8]], [[-0.25, -3.0]])
    batch = step(core)
    assert batch is not None and batch.logprobs is None


def test_a_device_that_counts_tokens_is_told_of_those_before() -> None:
    core = scheduler(num_blocks=4)
    params = SamplingParams(max_tokens=9, presence_penalty=1.0)
    core.add(TokenizedRequest(0, [5, 6], params, 0, 10, (1, 2, 7)))
    core.add(request(1, 6, 9))
    (first, second) = plan(core).admitted
    assert (first.token_ids, first.num_prompt_tokens) == ([5, 6], 2)
    assert (second.token_ids, second.num_prompt_tokens) == ([], 6)
