"""SchedulingOptions: which policies, and their parameters."""

from typing import Annotated, Literal

import msgspec

from pipeline.core.policies.deadline import Positive, Targets
from pipeline.core.retention import KvEviction

SJF_PROMPT_WEIGHT = 0.1

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(pattern=r"^([a-z]+|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")]
"""One of ours, or an import path."""


class SchedulingOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Part of [stages.schedule.options]; docs/scheduling.md says when to choose what."""

    policy: Name = "fcfs"
    """Who is admitted first: fcfs, priority, sjf, fair, deadline, or an import path (see policies.make)."""
    priority_ageing_s: Positive = 10.0
    """priority: waiting so long makes up for one level of priority."""
    sjf_tokens_per_s: Positive = 50.0
    """sjf: a second of waiting makes up for so many tokens of predicted work: the answer's, and"""
    sjf_prompt_weight: NotNegative = SJF_PROMPT_WEIGHT
    """so much for each prompt token, as many of these share a step."""
    fair_weights: dict[str, Positive] | None = None
    """fair: shares of tenants; 1 for those not named."""
    fair_prompt_weight: Positive = 1.0
    """fair: what a prompt token counts, and"""
    fair_output_weight: Positive = 2.0
    """what an output token does."""
    ttft_target_ms: Positive = 1000.0
    """deadline: for requests that name no target and whose tenant has none."""
    tpot_target_ms: Positive = 100.0
    deadline_classes: dict[str, Targets] | None = None
    """deadline: targets of tenants."""
    late: Literal["last", "shed"] = "last"
    """deadline: what becomes of a request that can no longer be in time."""
    length_predictor: Name = "quantile"
    """Of answers, for sjf and deadline: quantile, or an import path."""
    length_quantile: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    """quantile: which one of the latest answers to such requests."""
    allocation: Literal["paged", "contiguous"] = "paged"
    """contiguous: each request has one range of blocks for its prompt and max_tokens, from its admission on.
    The baseline, for comparisons; without prefix_cache."""
    batching: Literal["continuous", "static"] = "continuous"
    """static: a batch runs until all in it have ended. The baseline, for comparisons."""
    pad_to: Annotated[int, msgspec.Meta(ge=0)] = 0
    """static: prompts count as padded to so many tokens; 0: to the longest of the batch."""
    gather_ms: NotNegative = 0.0
    """How long an idle device waits for more requests after the first."""
    itl_stretch: NotNegative = 4.0
    """Prefill in a step with decode rows is limited so that it takes no more than so many times what these
    alone would; 0: it is not."""
    itl_target_ms: Positive | None = None
    """In place of itl_stretch: so that it takes no longer than this."""
    min_prefill_tokens: Count = 64
    """But this much prefill a step is always allowed."""
    max_bypasses: Annotated[int, msgspec.Meta(ge=0)] = 8
    """So many others may pass a request that comes first and does not fit,"""
    bypass_ms: NotNegative = 1000.0
    """and for so long."""
    max_preemptions: Annotated[int, msgspec.Meta(ge=0)] = 3
    """Of one request, as long as there is another to preempt."""
    max_wait_ms: NotNegative | None = 30_000.0
    """The longest that a request waits for the device; less if half its patience is. Then it is dropped.
    0, or none: without limit."""
    kv_eviction: KvEviction = "none"
    """What stays of the context of a request that does not say: all, or what core.retention says."""
    kv_budget: Count = 1024
    """Tokens that stay where anything is dropped, sinks included, and"""
    kv_sinks: Annotated[int, msgspec.Meta(ge=0)] = 4
    """how many of them are the first."""
