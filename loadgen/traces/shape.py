"""The measured shape of a trace. Pure: from rows to numbers.

Definitions, the ones with which the table of docs/loadgen.md was measured:
  percentiles  interpolated linearly between ranks; printed rounded half to even
  req/s        rows / span, first to last arrival
  gap CV       standard deviation (of the population) / mean of the gaps between arrivals
  IoD          index of dispersion: variance / mean of the arrivals in each second, from the first arrival on
  repeats      hash ids that an earlier row had, of all hash ids
  prefix hits  tokens of a row's leading blocks that earlier rows had, of all input tokens: what a prefix
               cache without bound and without delay would save
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from loadgen.traces.row import NS_PER_S, Blocks, TraceRow


class Quantiles(msgspec.Struct, frozen=True):
    """Of token counts."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


class Arrivals(msgspec.Struct, frozen=True):
    """How requests come. None where there are too few of them, or all at once."""

    span_s: float
    requests_per_s: float | None
    gap_cv: float | None
    iod_1s: float | None
    num_times: int
    """Distinct arrival times."""
    num_ties: int
    """Neighbouring rows that share their time."""
    max_tied: int
    """Rows on the busiest time."""


class Sharing(msgspec.Struct, frozen=True):
    """What rows have in common by their hash ids."""

    num_blocks: int
    repeat_share: float
    prefix_hit_share: float


class Sessions(msgspec.Struct, frozen=True):
    """Rows that follow one another's answers."""

    num_sessions: int
    """Rows that follow none: each begins a session."""
    num_followers: int
    longest: int
    """Rows on the longest chain."""
    num_with_think_time: int


class Shape(msgspec.Struct, frozen=True):
    num_rows: int
    input: Quantiles | None
    """Of the rows that have a length; None if none has."""
    output: Quantiles
    arrivals: Arrivals | None
    """None: the file has no times."""
    sharing: Sharing | None
    """None: the file has no hash ids."""
    sessions: Sessions | None
    """None: no row follows another."""


def measure(rows: Sequence[TraceRow], *, is_timed: bool = True) -> Shape:
    """The shape of at least one row, in order of arrival."""
    inputs = [row.num_input for row in rows if row.num_input is not None]
    return Shape(
        num_rows=len(rows),
        input=_quantiles(inputs) if inputs else None,
        output=_quantiles([row.num_output for row in rows]),
        arrivals=_arrivals([row.at_ns for row in rows]) if is_timed else None,
        sharing=sharing((row.content, row.num_input) for row in rows),
        sessions=_sessions(rows),
    )


def sharing(prompts: Iterable[tuple[object, int | None]]) -> Sharing | None:
    """Of prompts as (content, tokens) in the order they come; None if none has blocks."""
    seen: set[tuple[str, int]] = set()
    num_blocks = num_repeats = num_tokens = num_hit = 0
    for content, num_input in prompts:
        num_tokens += num_input or 0
        if not isinstance(content, Blocks) or num_input is None:
            continue
        is_prefix = True
        keys = []
        for hash_id, size in content.spans(num_input):
            key = (content.scope, hash_id)
            is_known = key in seen
            is_prefix = is_prefix and is_known
            num_repeats += is_known
            num_hit += size if is_prefix else 0
            keys.append(key)
        num_blocks += len(keys)
        seen.update(keys)
    return Sharing(num_blocks, num_repeats / num_blocks, num_hit / num_tokens) if num_blocks else None


def _quantiles(counts: list[int]) -> Quantiles:
    p50, p90, p99 = np.percentile(counts, (50, 90, 99)).tolist()
    return Quantiles(float(np.mean(counts)), p50, p90, p99, max(counts))


def _arrivals(times_ns: list[int]) -> Arrivals:
    times = np.array(times_ns, np.int64)
    gaps_s = np.diff(times) / NS_PER_S
    span_s = float(times[-1] - times[0]) / NS_PER_S
    _, tied = np.unique(times, return_counts=True)
    seconds = np.bincount((times - times[0]) // NS_PER_S)
    return Arrivals(
        span_s=span_s,
        requests_per_s=len(times) / span_s if span_s else None,
        gap_cv=float(gaps_s.std() / gaps_s.mean()) if span_s else None,
        iod_1s=float(seconds.var() / seconds.mean()) if span_s else None,
        num_times=len(tied),
        num_ties=int((gaps_s == 0).sum()),
        max_tied=int(tied.max()),
    )


def _sessions(rows: Sequence[TraceRow]) -> Sessions | None:
    turns: list[int] = []
    for row in rows:
        turns.append(1 if row.after is None else turns[row.after] + 1)
    num_sessions = turns.count(1)
    if num_sessions == len(rows):
        return None
    num_thought = sum(row.think_s is not None for row in rows)
    return Sessions(num_sessions, len(rows) - num_sessions, max(turns), num_thought)
