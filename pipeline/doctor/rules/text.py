"""After the scheduler: the detokenizer (or a filter after it), and clients that do not read."""

from statistics import fmean

from pipeline.doctor.blame import Blame, found, noticeable, segments
from pipeline.doctor.diagnosis import Advice, Constraint, Finding
from pipeline.doctor.facts import Facts
from pipeline.doctor.rules.queue import held_blame
from pipeline.doctor.steps import Held

TEXT_BUSY = 0.5
"""Of the one event loop: text work that takes half of it leaves too little for all else."""
BYTES_PER_TOKEN = 8
"""Of a frame with its share of JSON around the text; what one token costs a client's buffer."""


def is_text_bound(facts: Facts) -> bool:
    """A stage from detokenize on itself takes the loop's time."""
    return facts.busiest_text[1] > TEXT_BUSY


def detokenizer(facts: Facts) -> Finding | None:
    """Work on text takes the loop, so inboxes fill and no step is planned: the waits are upstream."""
    if not is_text_bound(facts):
        return None
    names = [name for name in facts.p99.segments_ns if name.endswith(".wait") and name != "tokenize.wait"]
    share = noticeable(facts, segments(facts.p99, "detokenize.service", *names))
    if share is None:
        return None
    stage, own = facts.busiest_text[0], segments(facts.p99, "detokenize.wait", "detokenize.service")
    is_own = stage.name == "detokenize"
    return found(
        Constraint.DETOKENIZER,
        "The detokenizer holds the steps back" if is_own else f"{stage.name} holds the steps back",
        share,
        f"{stage.name} takes {stage.utilisation:.0%} of the event loop, {stage.service_ms:.1f} ms a call, in "
        "which the scheduler and the sampler wait for their turn; up to "
        f"{stage.peak_depth} of {stage.bound} steps queue for it ({own.e2e_ns / 1e6:,.0f} ms of p99 E2E).",
        (
            Advice(
                f"stages.{stage.name}.use",
                f"the built-in one, or profile yours: stageline bench {stage.name}",
            ),
            Advice(
                "device.max_num_seqs",
                f"from {facts.settings.max_num_seqs} to "
                f"{max(1, facts.settings.max_num_seqs // 2)}, if the built-in one is it: fewer rows a step",
            ),
        ),
        "fewer rows a step are fewer tokens/s; more processes, each with its own loop, keep them.",
    )


def slow_clients(facts: Facts) -> Finding | None:
    """Clients did not read and their buffers were full; others may wait for the slots that these keep."""
    paused = [r for r in facts.finished if r.paused_ns]
    paused_ns = fmean(r.paused_ns for r in facts.slowest) if facts.slowest else 0.0
    kept = (held_blame(facts, Held.SLOTS) + held_blame(facts, Held.BLOCKS)).times(facts.paused_share)
    share = noticeable(facts, Blame(0.0, paused_ns) + kept)
    if share is None or not paused:
        return None
    gone = sum(r.finish == "cancelled" for r in paused)
    answer_bytes = BYTES_PER_TOKEN * max(r.num_output_tokens for r in paused)
    return found(
        Constraint.SLOW_CLIENTS,
        "Clients read more slowly than the server writes",
        share,
        f"{len(paused)} of {len(facts.finished)} requests had a full buffer ({gone} of them were cancelled), "
        f"those of p99 E2E for {paused_ns / 1e6:,.0f} ms, and kept slots and blocks for "
        f"{facts.paused_share:.0%} of the time that these were taken.",
        (
            Advice(
                "stages.stream.options.client_buffer_bytes",
                f"to {answer_bytes}, a whole answer, so that the device's slots are free sooner",
            ),
            Advice("stages.stream.options.slow_client_s", "lower, to cut them off sooner"),
        ),
        "more memory a client, or more clients cut off. Other requests are not held up, but for the blocks "
        "that these keep.",
    )
