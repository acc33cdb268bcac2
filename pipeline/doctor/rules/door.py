"""Before the scheduler: the admission limit, and the tokenizer."""

from math import ceil

from pipeline.doctor.blame import NOTICEABLE_SHARE, Share, found, noticeable, segments
from pipeline.doctor.diagnosis import Advice, Constraint, Finding
from pipeline.doctor.facts import Facts

MIN_REFUSED = 0.01
"""Of the requests offered: 1 in 100 refused is what a p99 client feels."""
MAX_FACTOR = 4.0
BUSY_WORKERS = 0.5
"""Of the workers' time in the busiest stretch: above it a random arrival waits at least as long as it is
served, in a queue of one worker (M/M/1: wait / service = u / (1 - u))."""
TARGET_BUSY = 0.6
"""What the workers are sized for: at 0.6 the mean wait of M/M/1 is 1.5 services."""


def admission(facts: Facts) -> Finding | None:
    """Requests were turned away, at the door or after too long a wait; each limit that did is named."""
    refusals = {**facts.refused, **facts.dropped}
    offered, refused = facts.num_offered, sum(refusals.values())
    if not refused or refused < MIN_REFUSED * offered:
        return None
    counts = ", ".join(f"{count} {code}" for code, count in refusals.items())
    return found(
        Constraint.ADMISSION,
        "The door refuses requests",
        Share(refused / offered, 0.0, "requests offered"),
        f"{refused} of {offered} requests were refused ({counts}), {_meanwhile(facts)}.",
        tuple(_raised(facts, code, offered / max(1, offered - refused)) for code in refusals),
        "those taken in wait longer for their first token, and hold more memory; else spread the burst, or "
        "add servers.",
    )


def _meanwhile(facts: Facts) -> str:
    """Whether a higher limit would help those who were refused."""
    if facts.queue_ns > NOTICEABLE_SHARE * facts.p99.ttft_ns:
        return "and those taken in waited long too: a higher limit alone only lengthens that queue"
    return "while those taken in hardly waited for the device"


def _raised(facts: Facts, code: str, factor: float) -> Advice:
    """The limit behind a code, as much higher as more came; at most 4 times, then look again."""
    settings, factor = facts.settings, min(MAX_FACTOR, factor)
    known = {
        "too_many_requests": ("stages.ingress.options.max_live_requests", settings.max_live_requests),
        "queue_full": ("stages.tokenize.inbox", facts.stage("tokenize").bound),
    }
    if code in known:
        setting, value = known[code]
        return Advice(setting, f"from {value} to {ceil(value * factor)}")
    return Advice(
        "stages.schedule.options.max_wait_ms", f"{factor:.1f} times as long, if clients will wait ({code})"
    )


def tokenizer(facts: Facts) -> Finding | None:
    """Workers busy with encoding (not with waiting for the scheduler), and requests waiting for them."""
    stage = max(facts.encoding_stages, key=lambda stage: stage.peak_utilisation)
    blocked = facts.blocked_share("schedule", sum(each.workers for each in facts.encoding_stages))
    busy = max(0.0, stage.peak_utilisation - blocked)
    share = noticeable(facts, segments(facts.p99, "tokenize.wait", "tokenize.service"))
    if share is None or busy < BUSY_WORKERS:
        return None
    workers = max(stage.workers + 1, ceil(stage.workers * busy / TARGET_BUSY))
    ttft = facts.p99.ttft_segments_ns
    return found(
        Constraint.TOKENIZER,
        f"{_called(stage.name)} is too slow for the prompts that come",
        share,
        f"{stage.workers} workers are busy {busy:.0%} of the time; a call takes {stage.service_ms:.1f} ms, "
        f"and p99 requests wait {ttft['tokenize.wait'] / 1e6:,.0f} ms for one and are encoded in "
        f"{ttft['tokenize.service'] / 1e6:,.0f} ms.",
        (
            Advice(f"stages.{stage.name}.workers", f"from {stage.workers} to {workers}"),
            Advice("prompt", "send token ids instead of text, where the client can"),
        ),
        f"each worker is a thread: beyond the machine's cores ({facts.settings.num_cpus}) they take time "
        "from the event loop.",
    )


def _called(name: str) -> str:
    return "The tokenizer" if name == "tokenize" else name
