"""The process: what stops the event loop, or everything."""

from itertools import pairwise

from pipeline.doctor.blame import Blame, found, noticeable
from pipeline.doctor.diagnosis import Advice, Constraint, Finding
from pipeline.doctor.facts import Facts
from pipeline.doctor.steps import quantile

LONG_LAG_NS = 50_000_000
"""A busy machine makes a loop late by 10 or 20 ms; a healthy callback takes less than 1."""
EXCUSED_NS = 100_000_000
"""What waiting for a CPU may excuse of one lateness: other work on the machine is no callback."""
GC_SHARE = 0.05
"""Of the time. After start the heap is frozen, and what is collected then takes less than 0.1 %."""


def event_loop(facts: Facts) -> Finding | None:
    """The loop came late again and again; neither a stage's ordinary work nor the collector explains it."""
    lags = _long_lags(facts)
    share = noticeable(facts, _stall_blame(facts, lags))
    if share is None or _is_collector(facts) or _is_stage_work(facts, lags):
        return None
    return found(
        Constraint.EVENT_LOOP,
        "Something blocks the event loop",
        share,
        f"the loop came {quantile(lags, 0.5) / 1e6:,.0f} ms late (typically) in {len(lags)} of "
        f"{len(facts.later)} samples, at worst {max(lags) / 1e6:,.0f} ms; no stage's ordinary call takes so "
        "long.",
        (
            Advice(
                "PYTHONASYNCIODEBUG", "to 1 in the environment: asyncio then logs every callback over 100 ms"
            ),
            Advice("stages.*.use", "in a stage of your own, move the blocking call to a thread"),
        ),
        "debug mode costs some speed; a thread costs two crossings, 30 to 300 us.",
    )


def garbage_collector(facts: Facts) -> Finding | None:
    """Collections stop all threads for a share of the time, each time for all live requests."""
    share = noticeable(facts, _collector_blame(facts))
    if share is None or not _is_collector(facts):
        return None
    first, last = facts.samples[0], facts.samples[-1]
    longest_ns = max(sample.gc_longest_ns for sample in facts.later)
    return found(
        Constraint.GARBAGE_COLLECTOR,
        "The garbage collector stops the server",
        share,
        f"{last.gc_pauses - first.gc_pauses} collections took {_gc_share(facts):.0%} of the time, the "
        f"longest {longest_ns / 1e6:,.0f} ms; RSS is {last.rss_bytes / 2**20:,.0f} MiB.",
        (
            Advice(
                "stages.*.use",
                "in a stage of your own, keep fewer objects that the collector tracks: columns "
                "instead of objects, msgspec structs with gc=False",
            ),
            Advice("gc.freeze()", "after anything large that is loaded after start"),
        ),
        "frozen objects are never collected if they come to be garbage.",
    )


def _long_lags(facts: Facts) -> list[int]:
    """Of each sample, where it is long and waiting for a CPU does not excuse it."""
    lags = []
    for before, sample in pairwise(facts.samples):
        excused_ns = min(EXCUSED_NS, sample.run_delay_ns - before.run_delay_ns)
        if sample.loop_lag_ns - excused_ns >= LONG_LAG_NS:
            lags.append(sample.loop_lag_ns)
    return lags


def _stall_blame(facts: Facts, lags: list[int]) -> Blame:
    """A slow request lived through its share of the stalls, and through one whole. A single one is chance."""
    if len(lags) < 2:
        return Blame()
    share, one_ns = sum(lags) / facts.span_ns, quantile(lags, 0.5)
    tail = facts.p99
    return Blame(
        min(tail.ttft_ns, max(share * tail.ttft_ns, one_ns)),
        min(tail.e2e_ns, max(share * tail.e2e_ns, one_ns)),
    )


def _collector_blame(facts: Facts) -> Blame:
    """Its share of everything, or more where single collections are long."""
    stalls, lost = _stall_blame(facts, _long_lags(facts)), _gc_share(facts)
    return Blame(max(stalls.ttft_ns, lost * facts.p99.ttft_ns), max(stalls.e2e_ns, lost * facts.p99.e2e_ns))


def _gc_share(facts: Facts) -> float:
    return (facts.samples[-1].gc_pause_ns - facts.samples[0].gc_pause_ns) / facts.span_ns


def _is_collector(facts: Facts) -> bool:
    """It took much time, and at least half of what the loop came late."""
    lags_ns = sum(_long_lags(facts))
    return _gc_share(facts) >= GC_SHARE and _gc_share(facts) * facts.span_ns >= lags_ns / 2


def _is_stage_work(facts: Facts, lags: list[int]) -> bool:
    """A stage on the loop ordinarily takes half as long as the loop was late: that stage is the matter."""
    stages = (facts.stage("schedule"), facts.stage("execute"), *facts.text_stages)
    longest_ms = max(stage.service_ms for stage in stages)
    return longest_ms >= quantile(lags, 0.5) / 2 / 1e6
