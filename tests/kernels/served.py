"""Requests through the real scheduler and a real runner, two steps in flight, on virtual time."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from msgspec.structs import replace
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.prefix import PrefixHash
from pipeline.core.prefix_cache import PrefixCache
from pipeline.core.scheduling import Scheduler
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from pipeline.gpu.weights.blocks import Weight
from pipeline.messages import (
    FinishReason,
    SampledBatch,
    SamplingParams,
    StepHandle,
    StepPlan,
    Terms,
    TokenizedRequest,
)
from tests.gpu.driver import KeepLogits, random_tensors

TOKEN_NS = 1_000_000
IN_FLIGHT = 2


@dataclass
class Served:
    """What came of it."""

    outputs: dict[int, list[int]] = field(default_factory=dict)
    """Token ids of each request, by its number."""
    logits: list[Tensor] = field(default_factory=list)
    """[R, V] of each step that sampled."""
    plans: list[StepPlan] = field(default_factory=list)
    num_live: int = 0
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    num_dropped_blocks: int = 0


def request(number: int, token_ids: list[int], max_tokens: int, **terms: Any) -> TokenizedRequest:
    """Greedy."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return TokenizedRequest(number, token_ids, sampling, 0, 0, (0, 0, 0), Terms(**terms))


def serve(
    architecture: Architecture,
    requests: Iterable[TokenizedRequest],
    options: RunnerOptions,
    together: int,
    weights: Iterable[tuple[str, Weight]] | None = None,
) -> Served:
    """All of them, in this order, `together` at a time: the next comes when one has ended."""
    keep, served = KeepLogits(), Served()
    weights = random_tensors(architecture) if weights is None else weights
    runner = build_runner(architecture, weights, options, lambda: keep)
    device = replace(runner.capacity, block_copy_ns=min(runner.capacity.block_copy_ns, 1))
    policies = make_policies(SchedulingOptions(max_wait_ms=None), device)
    prefixes = PrefixCache(PrefixHash(device.block_size, "m", b"s" * 32))
    scheduler = Scheduler(device, (), policies, prefixes=prefixes)
    waiting, flying, now = deque(requests), deque[StepHandle](), 0
    while waiting or not scheduler.is_idle:
        while waiting and served.num_live < together:
            served.num_live += 1
            served.outputs[waiting[0].request_id] = []
            each = waiting.popleft()
            assert scheduler.add(replace(each, token_ids=list(each.token_ids))) is None  # it lengthens them
        plan = scheduler.plan(now) if len(flying) < IN_FLIGHT else None
        if plan is not None:
            flying.append(runner.launch(plan))
            served.plans.append(plan)
            served.logits += [keep.last.clone()] if any(plan.samples) else []
        elif flying:
            handle = flying.popleft()
            begin_ns, now = now, now + TOKEN_NS * len(handle.plan.token_ids)
            scheduler.apply(_sampled(handle, begin_ns, now), now)
        _take(scheduler, served, now)
    served.num_hit_tokens = prefixes.num_hit_tokens
    served.num_preemptions = scheduler.num_preemptions
    served.num_swaps = int(policies.gauges().get("swaps_total", 0))
    served.num_dropped_blocks = scheduler.residents.num_dropped_blocks
    runner.close()
    return served


def _sampled(handle: StepHandle, begin_ns: int, end_ns: int) -> SampledBatch:
    plan = handle.plan
    return SampledBatch(
        plan.step_id,
        list(compress(plan.request_ids, plan.samples)),
        list(compress(plan.epochs, plan.samples)),
        handle.token_ids_sync(),
        (plan.planned_ns, begin_ns, end_ns, end_ns, end_ns),
        handle.drops_sync(),
    )


def _take(scheduler: Scheduler, served: Served, now_ns: int) -> None:
    batch = scheduler.take_tokens(now_ns)
    if batch is None:
        return
    rows = zip(batch.request_ids, batch.token_ids, batch.finish_reasons, strict=True)
    for request_id, token_id, reason in rows:
        served.outputs[request_id].append(token_id)
        served.num_live -= reason != FinishReason.NONE
