"""What was found, and how far it can be trusted, in words."""

import math
from collections.abc import Iterator, Sequence

from loadgen.capacity.bisect import Search, chance_at_the_edge
from loadgen.capacity.runs import Load
from loadgen.capacity.votes import Verdict, Vote


def vote_line(load: Load, verdict: Verdict) -> str:
    """The last run at a rate."""
    vote = verdict.votes[-1]
    state = "held" if vote.holds else "broken"
    values = ", ".join(f"{name.upper()} {value:.1f} ms" for name, value in vote.values_ms.items())
    line = (
        f"{verdict.rate:8.3g} req/s, run {len(verdict.votes)}: {state:6}  p{load.percentile:g} of "
        f"{vote.num_requests}: {values or 'nothing finished'}"
    )
    if vote.is_cut:
        line += f"; cut after {vote.wall_s:.1f} s: {vote.broken[0]}"
    elif not vote.holds:
        line += f"; {', '.join(vote.broken)}"
    return line + (f"; NO EVIDENCE, client-bound: {'; '.join(vote.client_bound)}" if not vote.counts else "")


def conclusion(
    load: Load, search: Search, verdicts: Sequence[Verdict], *, is_stopped: bool = False
) -> Iterator[str]:
    """The answer, the evidence on both sides of it, and what weakens it."""
    by_rate = {verdict.rate: verdict for verdict in verdicts}
    yield _answer(load, search, "the search was stopped" if is_stopped else _end(verdicts))
    for rate in (search.held, search.failed):
        if rate is not None:
            yield _evidence(by_rate[rate])
    yield from _doubts(load, search, verdicts)


def _end(verdicts: Sequence[Verdict]) -> str | None:
    """Why the search ended without a bracket, if it did."""
    last = verdicts[-1]
    if last.holds is None:
        return f"at {last.rate:.3g} req/s the generator itself is the bound"
    return f"no higher rate than {last.rate:.3g} req/s was asked for" if last.holds else None


def _answer(load: Load, search: Search, end: str | None) -> str:
    if search.held is None:
        tried = f"the lowest tried was {search.failed:.3g} req/s" if search.failed else None
        why = "; ".join(filter(None, (tried, end)))
        return f"no capacity found: no rate held {load.slo}; {why}"
    if search.failed is None:
        return f"capacity: at least {search.held:.3g} req/s ({load.slo}); {end}"
    answer = (
        f"capacity: {search.held:.3g} req/s ({load.slo}); {search.failed:.3g} req/s, "
        f"{search.failed / search.held - 1:.1%} more, is too much"
    )
    is_open = search.next_rate() is not None
    return f"{answer}; not narrowed further: {end}" if is_open else answer


def _evidence(verdict: Verdict) -> str:
    alike = verdict.num_held if verdict.holds else verdict.num_broken
    total = len(verdict.evidence)
    word = "held" if verdict.holds else "broken"
    chance = chance_at_the_edge(alike, total)
    return (
        f"  {verdict.rate:.3g} req/s {word} in {alike} of {total} runs (at the very edge chance gives that "
        f"1 time in {1 / chance:.2g}); {_spread(verdict.evidence)}"
    )


def _spread(votes: Sequence[Vote]) -> str:
    """Lowest to highest of each metric's percentile over the runs that were not cut."""
    whole = [vote for vote in votes if not vote.is_cut]
    found = []
    for name in dict.fromkeys(name for vote in whole for name in vote.values_ms):
        values = [vote.values_ms[name] for vote in whole if name in vote.values_ms]
        found.append(f"{name.upper()} {min(values):.1f} to {max(values):.1f} ms")
    return ", ".join(found) or "all runs were cut short"


def _doubts(load: Load, search: Search, verdicts: Sequence[Verdict]) -> Iterator[str]:
    mixed = [verdict for verdict in verdicts if verdict.num_held and verdict.num_broken]
    if mixed:
        rates = ", ".join(f"{verdict.rate:.3g}" for verdict in sorted(mixed, key=lambda each: each.rate))
        yield f"  the edge is soft: runs disagreed at {rates} req/s"
    void = sum(not vote.counts for verdict in verdicts for vote in verdict.votes)
    if void:
        yield f"  {void} runs were client-bound and are no evidence"
    if search.held is not None:
        yield from _weaknesses(load, search, search.held)


def _weaknesses(load: Load, search: Search, held: float) -> Iterator[str]:
    """What runs of this size cannot see."""
    rows = load.rows(held)
    needed = math.ceil(round(100 / (100 - load.percentile), 6)) if load.percentile < 100 else 0
    if rows < needed:
        yield (
            f"  {rows} requests a run are few: their p{load.percentile:g} is the worst of them; "
            f"{needed} or more would make it a percentile"
        )
    limit_s = min(load.slo.limits_ms.get(name, math.inf) for name in ("ttft", "e2e")) / 1000
    unseen = limit_s * held / rows
    if unseen > search.precision:
        yield (
            f"  runs of {rows / held:.0f} s are short: a queue that grows by up to {unseen:.0%} of the rate "
            f"stays within the limit to their end; {limit_s / search.precision:.0f} s would fit the precision"
        )
