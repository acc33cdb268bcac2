"""Fitting: from steps that were timed to StepTerms, and from a server's evidence to HostCosts.

Least squares of relative errors, with no coefficient below zero (Lawson and Hanson, 1974, chapter 23). The
base over a step's tokens is made of increments from knot to knot, so that it never falls.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError
from pipeline.messages import SEGMENTS
from pipeline.simulate.host import HostCosts
from pipeline.simulate.measured import MeasuredCost, Residual, StepTerms
from pipeline.simulate.work import StepWork
from pipeline.telemetry.evidence import Evidence
from pipeline.telemetry.journal import RequestRecord, StepRecord

Floats: TypeAlias = npt.NDArray[np.float64]

MIN_STEPS = 30
_DOOR = ("ingress.service", "tokenize.wait", "tokenize.service")
_TEXT = ("schedule.service", "detokenize.wait", "detokenize.service", "stream.wait", "stream.service")


class Timed(NamedTuple):
    work: StepWork
    step_ns: int


def fit_steps(steps: Sequence[Timed]) -> tuple[StepTerms, Residual]:
    """Raises ConfigError if there are too few steps to say anything."""
    if len(steps) < MIN_STEPS:
        raise ConfigError(f"{len(steps)} steps are too few to fit: {MIN_STEPS} are needed")
    knots = _knots([step.work.num_tokens for step in steps])
    times = np.array([step.step_ns for step in steps], np.float64)
    features = np.array([_features(step.work, knots) for step in steps], np.float64)
    scale = np.maximum(np.abs(features).max(axis=0), 1e-12)
    solution = non_negative(features / scale / times[:, None], np.ones(len(steps))) / scale
    per_row, per_kv, per_attended = solution[-3:].tolist()
    base = np.cumsum(solution[: len(knots)]).tolist()
    terms = StepTerms(tuple(zip(knots, base, strict=True)), per_row, per_kv, per_attended)
    return terms, residual(terms, steps)


def with_total(terms: StepTerms, steps: Sequence[Timed]) -> StepTerms:
    """The terms, scaled so that these steps take together as long as they took: what throughput rests on.

    Least squares of relative errors say too little where steps were now and then held up.
    """
    cost = MeasuredCost(terms)
    factor = sum(step.step_ns for step in steps) / sum(cost.step_ns(step.work) for step in steps)
    base = tuple((tokens, value * factor) for tokens, value in terms.base)
    return StepTerms(base, terms.per_row * factor, terms.per_kv * factor, terms.per_attended * factor)


def residual(terms: StepTerms, steps: Sequence[Timed]) -> Residual:
    """How far `terms` are from these steps."""
    cost = MeasuredCost(terms)
    errors = np.array([cost.step_ns(step.work) / step.step_ns - 1 for step in steps])
    off = np.abs(errors)
    return Residual(len(steps), float(np.median(off)), float(np.percentile(off, 90)), float(errors.mean()))


def timed_steps(evidence: Evidence) -> list[Timed]:
    """The steps of a server. How far each prefill token looks back is not recorded: it counts as one pass."""
    return [
        Timed(_work(record), record.end_ns - record.begin_ns)
        for record in evidence.steps
        if record.end_ns > record.begin_ns and record.num_rows
    ]


def _work(record: StepRecord) -> StepWork:
    num_tokens = record.num_prefill_tokens + record.num_decode_tokens
    num_kv = record.num_kv_tokens
    return StepWork(num_tokens, record.num_rows, record.num_rows, num_kv, num_kv)


def fit_host(evidence: Evidence) -> HostCosts:
    """Medians over the evidence. Raises ConfigError if no request or no step is in it."""
    requests = [record for record in evidence.requests if record.ttft_segments_ns]
    steps = evidence.steps
    if not requests or len(steps) < 2:
        raise ConfigError(
            "the evidence holds no finished request: let the server answer some, and save it again"
        )
    after = list(pairwise(steps))
    # a step that found the device idle began as soon as it came; one that had to wait, right after the other
    idle = [later.begin_ns - later.planned_ns for sooner, later in after if later.planned_ns > sooner.end_ns]
    queued = [later.begin_ns - sooner.end_ns for sooner, later in after if later.planned_ns <= sooner.end_ns]
    return HostCosts(
        door_ns=int(median(_sum(record, _DOOR) for record in requests)),
        launch_ns=int(median(idle)) if idle else HostCosts().launch_ns,
        gap_ns=max(0, int(median(queued))) if queued else HostCosts().gap_ns,
        result_ns=int(median(step.applied_ns - step.end_ns for step in steps)),
        text_ns=int(median(_sum(record, _TEXT) for record in requests)),
    )


def _sum(record: RequestRecord, names: Sequence[str]) -> int:
    """Of these segments up to the first token's write."""
    return sum(record.ttft_segments_ns[SEGMENTS.index(name)] for name in names)


def _knots(num_tokens: Sequence[int]) -> list[int]:
    """Powers of two within what was seen, and its ends."""
    low, high = min(num_tokens), max(num_tokens)
    return sorted({low, high} | {1 << power for power in range(24) if low < 1 << power < high})


def _features(work: StepWork, knots: Sequence[int]) -> list[float]:
    rises = [min(max((work.num_tokens - left) / (right - left), 0.0), 1.0) for left, right in pairwise(knots)]
    return [1.0, *rises, work.num_rows, work.num_kv, work.num_attended - work.num_kv]


def non_negative(matrix: Floats, target: Floats) -> Floats:
    """x >= 0 that makes |matrix x - target| smallest. [N, F], [N] -> [F]; Lawson and Hanson's NNLS."""
    num_features = matrix.shape[1]
    solution = np.zeros(num_features)
    free = np.zeros(num_features, bool)
    for _ in range(10 * num_features):
        gradient = matrix.T @ (target - matrix @ solution)
        gradient[free] = -np.inf
        best = int(gradient.argmax())
        if gradient[best] <= 1e-9:
            break
        free[best] = True
        while True:
            trial = np.zeros(num_features)
            trial[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
            if trial[free].min() > 0:
                break
            falling = free & (trial <= 0)
            step = float((solution[falling] / (solution[falling] - trial[falling] + 1e-300)).min())
            solution = solution + step * (trial - solution)
            free &= solution > 1e-15
            solution[~free] = 0.0
            if not free.any():
                break
        solution = trial
    return solution
