"""What the window's steps are made of, by core.step_cost's model fitted to all of them.

    time = base + prefill * prompt tokens + row * decode rows + kv * tokens in the KV cache

The weights are read once a step whatever its rows (base), matrix products grow with the tokens (prefill and
row: compute), attention reads the cache (kv: memory bandwidth).
"""

from collections.abc import Sequence
from statistics import correlation, fmean, pstdev

import msgspec

from pipeline.core.step_cost import StepCost
from pipeline.telemetry import StepRecord

MIN_STEPS = 20
"""Fewer steps than this fit anything."""
MAX_CORRELATION = 0.95
"""Of rows and context. Above it a least-squares fit divides their time between them by chance."""
MIN_VARIATION = 0.1
"""Rows that vary less than this, as a share of their mean, cannot be told from the base."""


class StepFit(msgspec.Struct, frozen=True):
    """Costs in ns, of a step and of each token or row in it; and shares of all device time, 1 together."""

    base_ns: float
    prefill_ns: float
    row_ns: float
    kv_ns: float
    base_share: float
    prefill_share: float
    row_share: float
    kv_share: float
    knows_rows: bool
    """The number of rows varied, so that a row's cost can be told."""

    knows_kv: bool
    """Rows and context did not just grow together, so that their costs can be told apart."""

    @property
    def compute_share(self) -> float:
        """What grows with the tokens that are computed."""
        return self.prefill_share + self.row_share * self.knows_kv

    @property
    def memory_share(self) -> float:
        """What grows with the context that is read; the rows' own cost too, where it cannot be told apart: at
        the batches of serving, a decode row costs its context before it costs its arithmetic."""
        return self.kv_share + self.row_share * (not self.knows_kv)


def fit(steps: Sequence[StepRecord]) -> StepFit | None:
    """None where there are too few steps to tell."""
    if len(steps) < MIN_STEPS:
        return None
    cost = StepCost(memory_steps=10 * len(steps))  # all count about the same
    for step in steps:
        cost.observe(
            step.num_prefill_tokens, step.num_decode_tokens, step.num_kv_tokens, step.end_ns - step.begin_ns
        )
    per_token = cost.coefficients
    spent_ns = (
        per_token.base * len(steps),
        per_token.per_prefill_token * sum(s.num_prefill_tokens for s in steps),
        per_token.per_decode_token * sum(s.num_decode_tokens for s in steps),
        per_token.per_kv_token * sum(s.num_kv_tokens for s in steps),
    )
    base, prefill, row, kv = (part / (sum(spent_ns) or 1.0) for part in spent_ns)
    return StepFit(*per_token, base, prefill, row, kv, _varies(steps), _differ(steps))


def _varies(steps: Sequence[StepRecord]) -> bool:
    rows = [s.num_decode_tokens for s in steps]
    return pstdev(rows) > MIN_VARIATION * fmean(rows)


def _differ(steps: Sequence[StepRecord]) -> bool:
    rows, held = [s.num_decode_tokens for s in steps], [s.num_kv_tokens for s in steps]
    return not (pstdev(rows) and pstdev(held)) or correlation(rows, held) < MAX_CORRELATION
