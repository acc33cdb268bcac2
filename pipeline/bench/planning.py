"""What planning a step costs with many who run and many who wait, under each policy. No stage around it."""

import gc
from statistics import median
from time import perf_counter_ns, thread_time_ns

import msgspec

from pipeline.bench.feeds import sampled_batch
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.scheduling import Scheduler
from pipeline.messages import DeviceReady, SamplingParams, Terms, TokenizedRequest

NUM_PROMPT_TOKENS = 16
BLOCK_SIZE = 16
NUM_TENANTS = 50


class PlanningResult(msgspec.Struct, frozen=True):
    """CPU times of one step, in microseconds."""

    policy: str
    running: int
    waiting: int
    plan_us: float
    """Median."""
    plan_p99_us: float
    apply_us: float
    """Median, of taking the result in and telling the tokens."""


def bench_planning(options: SchedulingOptions, running: int, waiting: int, steps: int) -> PlanningResult:
    """Plan and apply steps in which all `running` decode, while `waiting` others find no slot."""
    max_tokens = steps + 8
    num_blocks = running * -(-(NUM_PROMPT_TOKENS + max_tokens) // BLOCK_SIZE)
    max_batched = running * NUM_PROMPT_TOKENS
    device = DeviceReady(num_blocks, BLOCK_SIZE, running, max_batched)
    scheduler = Scheduler(device, (), make_policies(options, device))
    sampling = SamplingParams(max_tokens=max_tokens)
    for k in range(running + waiting):
        terms = Terms(tenant=str(k % NUM_TENANTS), priority=k % 3 if k < running else 0)
        prompt = [5] * NUM_PROMPT_TOKENS
        scheduler.add(TokenizedRequest(k, prompt, sampling, k, k, (0, 0, 0), terms))
    for _ in range(3):
        _step(scheduler)
    gc.collect()
    gc.disable()
    try:
        times = [_step(scheduler) for _ in range(steps)]
    finally:
        gc.enable()
    plans, applies = sorted(plan for plan, _ in times), [apply for _, apply in times]
    return PlanningResult(
        options.policy,
        running,
        waiting,
        plan_us=median(plans) / 1e3,
        plan_p99_us=plans[len(plans) * 99 // 100] / 1e3,
        apply_us=median(applies) / 1e3,
    )


def _step(scheduler: Scheduler) -> tuple[int, int]:
    """CPU time of plan and of apply, ns: whatever else the machine does is not in it."""
    now_ns = perf_counter_ns()
    begin_ns = thread_time_ns()
    plan = scheduler.plan(now_ns)
    plan_ns = thread_time_ns() - begin_ns
    assert plan is not None, "they have tokens left for all steps"
    result = sampled_batch(plan, [97] * sum(plan.samples), now_ns)
    begin_ns = thread_time_ns()
    scheduler.apply(result, now_ns)
    scheduler.take_tokens(now_ns)
    return plan_ns, thread_time_ns() - begin_ns
