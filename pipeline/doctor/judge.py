"""The judge: Evidence in, Diagnosis out."""

from pipeline.doctor import laws
from pipeline.doctor.blame import NOTICEABLE_SHARE
from pipeline.doctor.diagnosis import Diagnosis, Finding, Law, State
from pipeline.doctor.facts import Facts
from pipeline.doctor.rules import RULES
from pipeline.doctor.steps import Held
from pipeline.telemetry import Evidence

STARVED = 0.1
"""Of the time, without a CPU: then every figure here is in part that of other work on the machine."""
MIN_WINDOW_NS = 500_000_000
"""Rates of less than half a second are noise."""


def diagnose(evidence: Evidence) -> Diagnosis:
    """Judge a window. Never raises for what the numbers say; too short a window is State.UNKNOWN."""
    samples = evidence.samples
    if len(samples) < 2 or samples[-1].at_ns - samples[0].at_ns < MIN_WINDOW_NS:
        return _unknown(evidence)
    facts = Facts(evidence)
    is_idle = not (facts.finished or facts.num_offered or facts.steps or samples[-1].num_live)
    findings = () if is_idle else _findings(facts)
    checked = laws.check(facts)
    state = State.IDLE if is_idle else State.CONSTRAINED if findings else State.HEALTHY
    return Diagnosis(
        state=state,
        verdict=_verdict(state, facts, findings, checked),
        window_s=facts.span_s,
        num_requests=len(facts.finished),
        findings=findings,
        attributions=facts.attributions,
        stages=facts.stages,
        laws=checked,
        unknown=_not_seen(facts),
    )


def _findings(facts: Facts) -> tuple[Finding, ...]:
    found = [finding for rule in RULES if (finding := rule(facts)) is not None]
    return tuple(sorted(found, key=lambda finding: -finding.share))


def _verdict(state: State, facts: Facts, findings: tuple[Finding, ...], checked: tuple[Law, ...]) -> str:
    doubt = "" if all(law.holds for law in checked) else " The numbers do not add up: see the laws."
    if state is State.IDLE:
        return f"Idle: no request in {facts.span_s:.0f} s." + doubt
    if findings:
        first = findings[0]
        return f"{first.title}: {first.share:.0%} of {first.of}." + doubt
    tail = facts.p99
    where = max(tail.segments_ns, key=lambda name: tail.segments_ns[name]) if tail.segments_ns else ""
    most = f", most of it {where} ({tail.segments_ns[where] / tail.e2e_ns:.0%})" if where else ""
    return f"Healthy: nothing holds requests up. p99 E2E is {tail.e2e_ns / 1e6:,.0f} ms{most}." + doubt


def _not_seen(facts: Facts) -> tuple[str, ...]:
    missing = []
    if not facts.attributions:
        missing.append("where latency goes: no request with a first token ended in the window")
    if facts.steps and facts.step_fit is None:
        missing.append(f"what a step's time is made of: only {len(facts.steps)} steps")
    elif facts.step_fit is not None and not facts.step_fit.knows_rows:
        missing.append("what a decode row costs: the steps all had about as many")
    if (unexplained := facts.held[Held.POLICY]) > NOTICEABLE_SHARE:
        missing.append(
            f"why sequences waited for {unexplained:.0%} of that time: slots, tokens and blocks were "
            "free, so the policy held them back (itl_stretch, batching, gather_ms)"
        )
    if (starved := facts.starved_share) > STARVED:
        missing.append(
            f"what a machine of its own would give: the event loop waited {starved:.0%} of the time for a CPU"
        )
    if len(facts.samples) < laws.MIN_SAMPLES:
        missing.append(f"whether Little's law holds: only {len(facts.samples)} samples")
    return tuple(missing)


def _unknown(evidence: Evidence) -> Diagnosis:
    window_s = (evidence.end_ns - evidence.begin_ns) / 1e9
    return Diagnosis(
        state=State.UNKNOWN,
        verdict=f"Not judged: the samples span less than {MIN_WINDOW_NS / 1e9:g} s; ask again later.",
        window_s=window_s,
        num_requests=0,
        findings=(),
        attributions=(),
        stages=(),
        laws=(),
        unknown=("everything: there are too few samples",),
    )
