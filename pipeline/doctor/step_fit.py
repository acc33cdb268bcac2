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
MAX_STEPS = 2048
"""Of more, only some are fitted: a judgement must not hold the server up (20 us a step)."""
MAX_CORRELATION = 0.95
"""Of rows and context. Above it a least-squares fit divides their time between them by chance."""
MIN_VARIATION = 0.1
"""Counts that vary less than this, as a share of their mean, cannot be told from the base."""


class StepFit(msgspec.Struct, frozen=True):
    """Costs in ns, of a step and of each token or row in it; and shares of all device time, 1 together.

    What did not vary in the window cannot be told from the base, and counts as such.
    """

    base_ns: float
    prefill_ns: float
    row_ns: float
    kv_ns: float
    fixed_share: float
    """The same for every step of the window."""
    prefill_share: float
    row_share: float
    kv_share: float
    """With the rows' own cost, where rows and context only grew together: at the batches of serving, a decode
    row costs its context before it costs its arithmetic."""
    knows_rows: bool
    """The number of rows varied, so that a row's cost can be told."""

    @property
    def compute_share(self) -> float:
        """What grows with the tokens that are computed."""
        return self.prefill_share + self.row_share


def fit(steps: Sequence[StepRecord]) -> StepFit | None:
    """None where there are too few steps to tell."""
    if len(steps) < MIN_STEPS:
        return None
    fitted = steps[:: 1 + len(steps) // MAX_STEPS]
    cost = StepCost(memory_steps=10 * len(fitted))  # all count about the same
    for step in fitted:
        cost.observe(
            step.num_prefill_tokens, step.num_decode_tokens, step.num_kv_tokens, step.end_ns - step.begin_ns
        )
    rows, held = [s.num_decode_tokens for s in steps], [s.num_kv_tokens for s in steps]
    base_ns, prefill_ns, row_ns, kv_ns = cost.coefficients
    spent_ns = {
        "fixed": base_ns * len(steps),
        "prefill": prefill_ns * sum(s.num_prefill_tokens for s in steps),
        "row": row_ns * sum(rows),
        "kv": kv_ns * sum(held),
    }
    _give_away(spent_ns, rows, held)
    total_ns = sum(spent_ns.values()) or 1.0
    return StepFit(
        base_ns=base_ns,
        prefill_ns=prefill_ns,
        row_ns=row_ns,
        kv_ns=kv_ns,
        fixed_share=spent_ns["fixed"] / total_ns,
        prefill_share=spent_ns["prefill"] / total_ns,
        row_share=spent_ns["row"] / total_ns,
        kv_share=spent_ns["kv"] / total_ns,
        knows_rows=_varies(rows),
    )


def _give_away(spent_ns: dict[str, float], rows: list[int], held: list[int]) -> None:
    """Move what cannot be told apart to where it counts."""
    if not _varies(rows):
        spent_ns["fixed"] += spent_ns["row"]
        spent_ns["row"] = 0.0
    if not _varies(held):
        spent_ns["fixed"] += spent_ns["kv"]
        spent_ns["kv"] = 0.0
    elif _varies(rows) and correlation(rows, held) > MAX_CORRELATION:
        spent_ns["kv"] += spent_ns["row"]
        spent_ns["row"] = 0.0


def _varies(counts: list[int]) -> bool:
    return pstdev(counts) > MIN_VARIATION * fmean(counts)
