"""What the steps tell: why sequences waited for a place, and how busy the device was."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise

from pipeline.telemetry import Settings, StepRecord

MAX_STRETCH = 3
"""A step's stretch reaches back to the end of the one before, but not over idle time: this many durations."""

SHORT_OF_BLOCKS = 0.25
"""Free, of all. What the waiting sequence needs is not recorded; less than this may be too little for it."""


class Held(StrEnum):
    """What kept the first waiting sequence out of a step."""

    SLOTS = "slots"
    BUDGET = "budget"
    BLOCKS = "blocks"
    POLICY = "policy"


def held_by(step: StepRecord, settings: Settings) -> Held | None:
    """None: nobody waited. Where slots, tokens and blocks all had room, it was the policy's choice."""
    if not step.num_waiting:
        return None
    if step.num_preempted:
        return Held.BLOCKS
    if step.num_running >= settings.max_num_seqs:
        return Held.SLOTS
    if step.num_prefill_tokens + step.num_decode_tokens >= settings.max_num_batched_tokens:
        return Held.BUDGET
    return Held.BLOCKS if _is_short(step, settings.num_blocks) else Held.POLICY


def _is_short(step: StepRecord, num_blocks: int) -> bool:
    """Fewer blocks are free than a quarter of all, or than a sequence has on average."""
    free = num_blocks - step.num_used_blocks
    return free < SHORT_OF_BLOCKS * num_blocks or free * step.num_running < step.num_used_blocks


def held_shares(steps: Sequence[StepRecord], settings: Settings) -> dict[Held, float]:
    """Of the time in which sequences waited, the share of each reason; 0 each where none did."""
    spent = dict.fromkeys(Held, 0)
    for step, stretch_ns in stretches(steps):
        if (held := held_by(step, settings)) is not None:
            spent[held] += stretch_ns
    total = sum(spent.values())
    return {held: value / total if total else 0.0 for held, value in spent.items()}


def stretches(steps: Sequence[StepRecord]) -> Iterator[tuple[StepRecord, int]]:
    """Each step but the first with the time from the step before's end to its own, in ns, idle time cut."""
    for before, step in pairwise(steps):
        duration_ns = step.end_ns - step.begin_ns
        yield step, min(step.end_ns - before.end_ns, MAX_STRETCH * max(duration_ns, 1))


def busy_share(steps: Sequence[StepRecord]) -> float:
    """Share of the time at work, idle time left out, in which the device computed."""
    spent_ns = sum(stretch_ns for _, stretch_ns in stretches(steps))
    return min(1.0, sum(s.end_ns - s.begin_ns for s in steps[1:]) / spent_ns) if spent_ns else 0.0


def busy_ns(steps: Sequence[StepRecord]) -> int:
    """Time in which the device computed, overlaps counted once."""
    total_ns = done_ns = 0
    for step in steps:
        total_ns += max(0, step.end_ns - max(step.begin_ns, done_ns))
        done_ns = max(done_ns, step.end_ns)
    return total_ns


def quantile(values: Sequence[float], share: float) -> float:
    """Of nearest rank; 0.0 of nothing."""
    ranked = sorted(values)
    return ranked[round(share * (len(ranked) - 1))] if ranked else 0.0
