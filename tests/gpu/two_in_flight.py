"""The real scheduler over a real runner, without the stages between, two steps in flight."""

from collections import deque
from itertools import compress

from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.scheduling import Scheduler
from pipeline.gpu.runner import Runner
from pipeline.messages import SampledBatch, SamplingParams, StepHandle, TokenizedRequest

CREDITS = 2
Asked = tuple[list[int], SamplingParams]


def generate(
    runner: Runner, requests: list[Asked], options: SchedulingOptions | None = None
) -> list[list[int]]:
    """The answers' token ids. Requests come one a step."""
    options = options or SchedulingOptions(max_wait_ms=None)
    scheduler = Scheduler(runner.capacity, (), make_policies(options, runner.capacity))
    answers: list[list[int]] = [[] for _ in requests]
    flying: deque[StepHandle] = deque()
    waiting = deque(enumerate(requests))
    now = 1
    while waiting or not scheduler.is_idle:
        now += 1000
        if waiting:
            number, (prompt, sampling) = waiting.popleft()
            request = TokenizedRequest(number, list(prompt), sampling, now, now, (0, 0, 0))
            assert scheduler.add(request) is None
        while len(flying) < CREDITS and (plan := scheduler.plan(now)) is not None:
            flying.append(runner.launch(plan))
        if flying:
            scheduler.apply(_result(flying.popleft(), now), now)
        if (batch := scheduler.take_tokens(now)) is not None:
            for request_id, token_id in zip(batch.request_ids, batch.token_ids, strict=True):
                answers[request_id] += [token_id] if token_id >= 0 else []
    return answers


def _result(handle: StepHandle, now: int) -> SampledBatch:
    plan = handle.plan
    return SampledBatch(
        plan.step_id,
        list(compress(plan.request_ids, plan.samples)),
        list(compress(plan.epochs, plan.samples)),
        handle.token_ids_sync(),
        (now, now, now, now, now),
        handle.drops_sync(),
        handle.logprobs_sync(),
    )
