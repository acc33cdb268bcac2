"""The host's side of the step cycle: gaps that the device waits through, and the sampler."""

from pipeline.doctor.blame import Blame, found, noticeable, segments
from pipeline.doctor.diagnosis import Advice, Constraint, Finding
from pipeline.doctor.facts import Facts
from pipeline.doctor.rules.text import is_text_bound
from pipeline.doctor.steps import quantile

GAP_CYCLE = 0.25
"""A quarter of the cycle lost to the host: a third more tokens/s are to be had."""
CLIP = 4.0
"""Gaps count up to so many typical ones: rare long ones are stalls, which are the event loop's finding."""
SAMPLER_SHARE = 0.3
"""Of the cycle: above it, the device waits for its own tokens."""


def host_gap(facts: Facts) -> Finding | None:
    """Between steps the device waits for the host, steadily, and nobody downstream holds the steps back."""
    gaps = [s.host_gap_ns for s in facts.steps]
    typical_ns = quantile(gaps, 0.5)
    lost_ns = sum(min(gap, CLIP * typical_ns) for gap in gaps)
    busy_ns = sum(s.end_ns - s.begin_ns for s in facts.steps)
    lost = lost_ns / max(1.0, lost_ns + busy_ns)
    stages = [facts.stage(name) for name in ("schedule", "execute", "sample", "stream")]
    worst = max(stages, key=lambda stage: stage.utilisation)
    cycle = segments(facts.p99, "schedule.wait", "schedule.service", "execute.wait", "execute.service")
    share = noticeable(facts, Blame(0.0, lost * cycle.e2e_ns))
    if share is None or lost < GAP_CYCLE or is_text_bound(facts) or is_sampler_bound(facts):
        return None
    credits = facts.settings.credits
    host_ms, hidden_ms = (typical_ns + facts.step_ns) / 1e6, facts.step_ns / 1e6
    advice = (
        Advice("stages.schedule.options.credits", f"from {credits} to 2")
        if credits < 2
        else Advice(
            f"stages.{worst.name}.use",
            f"profile this stage (stageline bench {worst.name}): the host needs {host_ms:.1f} ms a step, and "
            f"up to {hidden_ms:.1f} would not show",
        )
    )
    return found(
        Constraint.HOST_GAP,
        "The device waits for the host between steps",
        share,
        f"typically {typical_ns / 1e6:.1f} ms after each step of {facts.step_ns / 1e6:.1f} ms: {lost:.0%} of "
        f"the cycle. Busiest on the loop: {worst.name}, {worst.utilisation:.0%} of the time, "
        f"{worst.service_ms:.1f} ms a call.",
        (advice, Advice("device.max_num_seqs", "higher, where sequences wait: more rows share one gap")),
        "with more steps in flight a cancel takes effect later; with more rows each step takes longer.",
    )


def is_sampler_bound(facts: Facts) -> bool:
    """The host half of sampling takes a large part of each cycle, for the ordinary request too, and it is the
    stage that takes it, not a loop that comes late."""
    own = segments(facts.p50, "sample.wait", "sample.service").e2e_ns
    cycle = own + segments(facts.p50, "execute.wait", "execute.service", "schedule.service").e2e_ns
    is_busy = facts.stage("sample").peak_utilisation > SAMPLER_SHARE
    return is_busy and own > SAMPLER_SHARE * max(1.0, cycle) and not is_text_bound(facts)


def sampler(facts: Facts) -> Finding | None:
    """Steps are done, and their tokens are long in coming off the device."""
    share = noticeable(facts, segments(facts.p99, "sample.wait", "sample.service"))
    if share is None or not is_sampler_bound(facts):
        return None
    late_ns = quantile([s.sampled_ns - s.end_ns for s in facts.steps], 0.5)
    return found(
        Constraint.SAMPLER,
        "The sampler is slower than the device",
        share,
        f"after a step of {facts.step_ns / 1e6:.1f} ms its tokens take {late_ns / 1e6:.1f} ms (p50) to reach "
        f"the scheduler; the next step but {facts.settings.credits} cannot begin before.",
        (
            Advice("stages.sample.use", "the built-in one, or profile yours: stageline bench sample"),
            Advice(
                "stages.schedule.options.credits",
                f"from {facts.settings.credits} to "
                f"{facts.settings.credits + 1}, which hides a sampler as slow as the device",
            ),
        ),
        "with more steps in flight a cancel takes effect later, and up to that many tokens more are computed "
        "for nothing at a stop.",
    )
