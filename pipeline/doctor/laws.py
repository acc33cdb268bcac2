"""Laws that the numbers obey whatever the server does; one that does not hold says: do not trust them.

Little's law is J. D. C. Little, A Proof for the Queuing Formula L = lambda W, Operations Research 9 (1961);
the utilisation law and flow balance are in P. J. Denning and J. P. Buzen, The Operational Analysis of
Queueing Network Models, ACM Computing Surveys 10 (1978).
"""

from math import sqrt
from statistics import fmean, stdev

from pipeline.doctor.diagnosis import Law
from pipeline.doctor.facts import Facts
from pipeline.doctor.stages import of
from pipeline.doctor.steps import busy_ns
from pipeline.telemetry.journal import NUM_REQUESTS, NUM_STEPS

LITTLE_TOLERANCE = 0.25
"""Requests that straddle an end of the window are in one side and not in the other."""
MIN_SAMPLES = 8
"""Of live requests; a mean of fewer says nothing of a load that comes and goes."""
MIN_LIFETIMES = 4
"""Little's law is about averages: the window has to be several mean lifetimes long."""
UTILISATION_TOLERANCE = 0.1
CONSERVATION_TOLERANCE = 0.02


def check(facts: Facts) -> tuple[Law, ...]:
    """Every law that can be checked on this evidence."""
    laws = (little(facts), utilisation(facts), conservation(facts), segment_sums(facts))
    return tuple(law for law in laws if law is not None)


def little(facts: Facts) -> Law | None:
    """mean live = arrival rate x mean E2E."""
    if not facts.finished or len(facts.samples) < MIN_SAMPLES:
        return None
    live = fmean(sample.num_live for sample in facts.samples)
    rate = facts.num_taken / facts.span_s
    e2e_s = fmean(r.e2e_ns for r in facts.finished) / 1e9
    doubt = _doubt([sample.num_live for sample in facts.samples])
    residual = _relative(live, rate * e2e_s)
    is_close = residual <= LITTLE_TOLERANCE or abs(live - rate * e2e_s) <= doubt
    why = ""
    if not is_close:
        lifetimes = facts.span_s / e2e_s
        short = f"the window is only {lifetimes:.1f} mean lifetimes long: look for longer"
        why = short if lifetimes < MIN_LIFETIMES else _ramp(facts)
    claim = f"{live:.1f} (+-{doubt:.1f}) live on average = {rate:.2f} requests/s x {e2e_s:.2f} s"
    return Law("Little", claim, residual, is_close, why)


def _doubt(live: list[int]) -> float:
    """Two standard errors of the mean of the samples, or one request."""
    return max(1.0, 2 * stdev(live) / sqrt(len(live)))


def _ramp(facts: Facts) -> str:
    moved = facts.samples[-1].num_live - facts.samples[0].num_live
    if abs(moved) > 0.1 * max(1, facts.num_taken):
        return f"live requests changed by {moved:+d} in the window: the load was rising or falling"
    return "too few samples for a load that comes in bursts"


def utilisation(facts: Facts) -> Law | None:
    """Device busy share = step rate x mean step time; the rate is of the counters, all else of the steps.

    Both are sums over the device workers.
    """
    if not facts.steps:
        return None
    rate = (of(facts.samples[-1], "execute").sent - of(facts.samples[0], "execute").sent) / facts.span_s
    service_s = fmean(s.end_ns - s.begin_ns for s in facts.steps) / 1e9
    workers = {s.worker for s in facts.steps}
    busy = sum(busy_ns([s for s in facts.steps if s.worker == each]) for each in workers) / facts.span_ns
    residual = _relative(busy, rate * service_s)
    holds = residual <= UTILISATION_TOLERANCE or abs(busy - rate * service_s) <= 0.02
    why = ""
    if not holds:
        why = (
            f"the journal keeps the latest {NUM_STEPS} steps: look at a shorter window"
            if len(facts.steps) >= NUM_STEPS
            else "steps overlap on the device, or the window is too short for its steps"
        )
    claim = f"device busy {busy:.1%} = {rate:.1f} steps/s x {1000 * service_s:.2f} ms"
    return Law("utilisation", claim, residual, holds, why)


def conservation(facts: Facts) -> Law:
    """Requests taken in = ended + change of live."""
    begin_ns, end_ns = facts.samples[0].at_ns, facts.samples[-1].at_ns
    ended = sum(begin_ns < r.arrived_ns + r.e2e_ns <= end_ns for r in facts.evidence.requests)
    moved = facts.samples[-1].num_live - facts.samples[0].num_live
    off = facts.num_taken - ended - moved
    residual = abs(off) / max(1, facts.num_taken)
    holds = residual <= CONSERVATION_TOLERANCE or abs(off) <= 1
    why = ""
    if not holds:
        why = (
            f"the journal keeps the latest {NUM_REQUESTS} requests: look at a shorter window"
            if len(facts.evidence.requests) >= NUM_REQUESTS
            else "requests ended without a record"
        )
    claim = f"{facts.num_taken} taken in = {ended} ended {moved:+d} live"
    return Law("conservation", claim, residual, holds, why)


def segment_sums(facts: Facts) -> Law | None:
    """Each request's segments add up to its E2E, those up to the first token to its TTFT."""
    if not facts.finished:
        return None
    worst = max(
        max(
            abs(sum(r.segments_ns) - r.e2e_ns),
            abs(sum(r.ttft_segments_ns) - (r.ttft_ns or 0)) if r.ttft_segments_ns else 0,
        )
        / max(1, r.e2e_ns)
        for r in facts.finished
    )
    claim = f"the segments of {len(facts.finished)} requests add up to their E2E and TTFT"
    why = "" if worst == 0 else "a stage gave wrong times"
    return Law("segments", claim, worst, worst == 0, why)


def _relative(one: float, other: float) -> float:
    return abs(one - other) / max(one, other, 1e-9)
