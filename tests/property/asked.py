"""What the scheduler is asked in its property tests: requests' terms, and options."""

from hypothesis import strategies as st

from pipeline.core.policies import SchedulingOptions
from pipeline.messages import Terms

BLOCK = 4
CREDITS = 2

TERMS = st.builds(
    Terms,
    tenant=st.sampled_from(["", "gold", "silver"]),
    priority=st.integers(0, 2),
    ttft_target_ms=st.sampled_from([None, 1e-4, 1.0]),
    tpot_target_ms=st.sampled_from([None, 1e-5, 1.0]),
    patience_ms=st.sampled_from([None, None, 1e-3]),
)
"""A tick is 7 ns, so these are some dozens of ticks, or far more than a run has."""
DROPPING = st.builds(
    Terms,
    tenant=st.sampled_from(["", "gold"]),
    priority=st.integers(0, 2),
    kv_eviction=st.sampled_from(["sink_window", "heavy_hitter", "heavy_hitter"]),
    kv_budget=st.sampled_from([8, 9, 12, 16, 23]),
    kv_sinks=st.sampled_from([0, 0, 1, 4, 7]),
)


def options(policy: str) -> st.SearchStrategy[SchedulingOptions]:
    """A policy with everything else that may be chosen beside it."""
    return st.builds(
        SchedulingOptions,
        policy=st.just(policy),
        priority_ageing_s=st.sampled_from([1e-8, 1e-6]),
        sjf_tokens_per_s=st.sampled_from([1e6, 1e9]),
        fair_weights=st.sampled_from([None, {"gold": 3.0}]),
        ttft_target_ms=st.sampled_from([1e-4, 1.0]),
        late=st.sampled_from(["last", "shed"]),
        batching=st.sampled_from(["continuous", "continuous", "static"]),
        pad_to=st.sampled_from([0, 30]),
        gather_ms=st.sampled_from([0.0, 5e-5]),
        itl_stretch=st.sampled_from([0.0, 1.5, 4.0]),
        itl_target_ms=st.sampled_from([None, 1e-5, 1.0]),
        min_prefill_tokens=st.integers(1, 8),
        max_bypasses=st.integers(0, 3),
        bypass_ms=st.sampled_from([0.0, 1e-3, 1.0]),
        max_preemptions=st.integers(0, 3),
        max_wait_ms=st.sampled_from([None, None, 2e-3]),
        kv_eviction=st.sampled_from(["none", "none", "none", "sink_window", "heavy_hitter"]),
        kv_budget=st.just(2 * BLOCK),
        kv_sinks=st.just(0),
    )
