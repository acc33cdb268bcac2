"""The device's own speed: what it computes, and what it reads."""

from pipeline.doctor.blame import Blame, found, noticeable
from pipeline.doctor.diagnosis import Advice, Constraint, Finding
from pipeline.doctor.facts import Facts
from pipeline.doctor.rules.queue import MAX_MARGINAL, queue_blame
from pipeline.doctor.steps import Held, quantile

SATURATED = 0.85
"""Of the time at work. A device that is busy is no fault: only with requests that wait, or steps stretched by
others, is it a finding."""
STRETCHED = 3.0
"""A step that takes this many times what it would for one sequence alone."""


def device_compute(facts: Facts) -> Finding | None:
    """The device computes all the time, mostly what grows with the tokens, and sequences wait or share it."""
    fit = facts.step_fit
    if fit is None or fit.compute_share < max(fit.kv_share, MAX_MARGINAL):
        return None
    share = noticeable(facts, _saturation(facts, fit.row_share))
    if share is None:
        return None
    speed = f" (at most {1e9 / fit.prefill_ns:,.0f} tokens/s)" if fit.prefill_ns else ""
    return found(
        Constraint.DEVICE_COMPUTE,
        "The device computes as fast as it can",
        share,
        f"busy {facts.device_busy:.0%} of the time at work; {fit.prefill_share:.0%} of that is prefill"
        f"{speed}, {fit.row_share:.0%} decode rows, {fit.fixed_share:.0%} the same "
        f"for every step; {_queue_words(facts)}.",
        (
            Advice("servers", f"{_servers(facts):.1f} times as many, or a device that is faster by as much"),
            Advice(
                "stages.schedule.options.max_waiting",
                f"from {facts.settings.max_waiting} to {_fewer(facts)}, "
                "to refuse early what would wait too long",
            ),
        ),
        "more servers cost money, fewer waiting requests are refused ones.",
    )


def device_bandwidth(facts: Facts) -> Finding | None:
    """The device is busy with reading the KV cache: steps grow with the tokens held, not those computed."""
    fit = facts.step_fit
    if fit is None or fit.kv_share < max(fit.compute_share, MAX_MARGINAL):
        return None
    share = noticeable(facts, _saturation(facts, fit.kv_share))
    if share is None:
        return None
    held = quantile([s.num_kv_tokens for s in facts.steps], 0.5)
    rows = quantile([s.num_rows for s in facts.steps], 0.5)
    target = max(1, int(rows / 2))
    return found(
        Constraint.DEVICE_BANDWIDTH,
        "The device spends its time reading the KV cache",
        share,
        f"busy {facts.device_busy:.0%} of the time at work; {fit.kv_share:.0%} of that grows with the "
        f"tokens held (typically {held:,.0f} in {rows:.0f} rows, {fit.kv_ns * held / 1e6:.1f} of "
        f"{facts.step_ns / 1e6:.1f} ms a step); {_queue_words(facts)}.",
        (
            Advice(
                "device.max_num_seqs", f"from {facts.settings.max_num_seqs} to {target}, which halves ITL"
            ),
            Advice("model.max_model_len", "lower, where such long contexts are not needed"),
        ),
        "fewer rows a step: others wait longer for their first token, and throughput falls a little.",
    )


def _saturation(facts: Facts, share: float) -> Blame:
    """Queueing that the device's work explains, and `share` of the steps where other rows stretch them.

    Nothing if it had rest; and steps that others' prefill stretches are the token budget's.
    """
    if facts.device_busy < SATURATED:
        return Blame()
    queue = queue_blame(facts, Held.BUDGET) + queue_blame(facts, Held.SLOTS)
    if facts.plain_step_ns > STRETCHED * _alone_ns(facts):
        decode_ns = facts.p99.decode_segments_ns.get("execute.service", 0.0)
        queue += Blame(0.0, share * decode_ns)
    return queue


def _alone_ns(facts: Facts) -> float:
    """A step of one decode row with its own share of the KV, by the fit."""
    fit = facts.step_fit
    if fit is None:
        return facts.step_ns
    held = quantile([s.num_kv_tokens / max(1, s.num_running) for s in facts.steps], 0.5)
    return fit.base_ns + fit.row_ns + fit.kv_ns * held


def _queue_words(facts: Facts) -> str:
    waiting = quantile([s.num_waiting for s in facts.steps], 0.95)
    return f"{waiting:.0f} sequences waited (p95)" if waiting else "nobody waited, all shared it"


def _servers(facts: Facts) -> float:
    """What came against what was finished, at least the 1.2 that takes a saturated device to 85 %."""
    live = facts.samples[-1].num_live - facts.samples[0].num_live
    ended = max(1, facts.num_taken - live)
    return max(1.2, (facts.num_offered / ended) / SATURATED)


def _fewer(facts: Facts) -> int:
    """What the device finishes in one second of waiting."""
    return max(1, round(len(facts.finished) / facts.span_s))
