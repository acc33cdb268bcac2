"""The queue for the device: what keeps sequences out of a step, or makes the steps of others long."""

from math import ceil

from pipeline.doctor.blame import Blame, found, noticeable, segments
from pipeline.doctor.diagnosis import Advice, Constraint, Finding
from pipeline.doctor.facts import Facts
from pipeline.doctor.steps import Held, quantile

MAX_MARGINAL = 0.5
"""If more than this of a step grows with its rows, a larger batch is no faster: the device is the limit."""
LONG_STEP = 2.0
"""A decode row notices a step that takes twice as long as one without prefill."""
FRAGMENTED = 0.3
"""Of the used blocks' room. Half a block a sequence is empty on average: with 16 tokens a block, so much at
sequences of 19 tokens."""


def queue_blame(facts: Facts, held: Held) -> Blame:
    """The wait for a place in a step that one reason explains, as far as those who run do run."""
    blame = held_blame(facts, held)
    return blame if held is Held.BUDGET else blame.times(1.0 - facts.paused_share)


def held_blame(facts: Facts, held: Held) -> Blame:
    """The same, those included who keep slots and blocks because their clients do not read."""
    share = facts.held[held]
    wait_ns = facts.p99.segments_ns.get("schedule.wait", 0.0)
    natural_ns = facts.settings.credits * facts.step_ns
    return Blame(facts.queue_ns * share, max(0.0, wait_ns - natural_ns) * share)


def batch_cap(facts: Facts) -> Finding | None:
    """All slots taken while sequences wait, and a step hardly costs more for more rows."""
    share = noticeable(facts, queue_blame(facts, Held.SLOTS))
    if share is None or _is_linear(facts):
        return None
    cap = facts.settings.max_num_seqs
    wanted = max(s.num_running + s.num_waiting for s in facts.steps)
    target = min(wanted, 8 * cap)
    return found(
        Constraint.BATCH_CAP,
        "Too few sequences may run at once",
        share,
        f"all {cap} slots were taken for {facts.held[Held.SLOTS]:.0%} of the time in which sequences waited, "
        f"up to {_max_waiting(facts)} of them.",
        (Advice("device.max_num_seqs", f"from {cap} to {target}"),),
        "each step has more rows: ITL grows by what a row costs, and more KV blocks are in use "
        f"({_used(facts):.0%} now).",
    )


def _is_linear(facts: Facts) -> bool:
    """A step's time is mostly that of its rows and tokens, and that is known."""
    fit = facts.step_fit
    return fit is not None and 1.0 - fit.fixed_share > MAX_MARGINAL


def kv_capacity(facts: Facts) -> Finding | None:
    """Sequences that a slot and the step's budget would have let in wait for blocks, or lose theirs."""
    preempted = sum(s.num_preempted for s in facts.steps)
    share = noticeable(facts, queue_blame(facts, Held.BLOCKS) + _recompute(facts))
    if share is None:
        return None
    settings, target = facts.settings, _blocks_wanted(facts)
    fragmentation = _fragmentation(facts)
    advice = [Advice("device.num_blocks", f"from {settings.num_blocks} to {target} (or device.kv_memory)")]
    if fragmentation > FRAGMENTED and settings.block_size > 8:
        advice.append(
            Advice("device.block_size", f"from {settings.block_size} to {settings.block_size // 2}")
        )
    return found(
        Constraint.KV_CAPACITY,
        "The KV cache is too small",
        share,
        f"up to {_used(facts):.0%} of {settings.num_blocks} blocks were used while {_max_waiting(facts)} "
        f"sequences waited; {preempted} preemptions, {_recomputed_share(facts):.0%} of the prefill is tokens "
        f"computed before; {fragmentation:.0%} of the used room is empty.",
        tuple(advice),
        "memory: more of it for KV; where there is none, a lower device.max_num_seqs ends the preemptions "
        "and costs throughput.",
    )


def _recompute(facts: Facts) -> Blame:
    """The steps' time that tokens computed before took, where requests were preempted."""
    if not sum(s.num_preempted for s in facts.steps) or facts.step_fit is None:
        return Blame()
    again = _recomputed_share(facts) * facts.step_fit.prefill_share
    return segments(facts.p99, "execute.service").times(0.0, again)


def _recomputed_share(facts: Facts) -> float:
    prefill = sum(s.num_prefill_tokens for s in facts.steps)
    prompts = sum(r.num_prompt_tokens for r in facts.finished)
    if not prefill or not sum(s.num_preempted for s in facts.steps):
        return 0.0
    return max(0.0, 1.0 - prompts / prefill)


def _blocks_wanted(facts: Facts) -> int:
    """For all that ran or waited at the worst moment, as far as there are slots, at the blocks one had."""
    ran = max(s.num_running + s.num_waiting for s in facts.steps)
    each = max(s.num_used_blocks / max(1, s.num_running) for s in facts.steps)
    wanted = ceil(min(ran, facts.settings.max_num_seqs) * each)
    return max(wanted, ceil(1.25 * facts.settings.num_blocks))


def _used(facts: Facts) -> float:
    return max((s.num_used_blocks for s in facts.steps), default=0) / max(1, facts.settings.num_blocks)


def _fragmentation(facts: Facts) -> float:
    room = sum(s.num_used_blocks for s in facts.steps) * facts.settings.block_size
    held = sum(s.num_kv_tokens - s.num_shared_tokens for s in facts.steps)
    return max(0.0, 1.0 - held / room) if room else 0.0


def _max_waiting(facts: Facts) -> int:
    return max((s.num_waiting for s in facts.steps), default=0)


def token_budget(facts: Facts) -> Finding | None:
    """max_num_batched_tokens: so large that prefill holds decode rows up, or so small that prompts wait."""
    return _too_large(facts) or _too_small(facts)


def _too_large(facts: Facts) -> Finding | None:
    """Steps with decode rows that take much longer for the prefill in them."""
    fit = facts.step_fit
    mixed = [s for s in facts.steps if s.num_prefill_tokens and s.num_decode_tokens]
    if fit is None or not mixed:
        return None
    decoding = [s for s in facts.steps if s.num_decode_tokens]
    spent_ns = sum(s.end_ns - s.begin_ns for s in decoding)
    stolen = min(1.0, fit.prefill_ns * sum(s.num_prefill_tokens for s in mixed) / max(1, spent_ns))
    plain_ns = facts.plain_step_ns
    long_ns = quantile([s.end_ns - s.begin_ns for s in mixed], 0.95)
    decode_ns = facts.p99.decode_segments_ns.get("execute.service", 0.0)
    share = noticeable(facts, Blame(0.0, stolen * decode_ns))
    if share is None or long_ns < LONG_STEP * plain_ns:
        return None
    budget, most = facts.settings.max_num_batched_tokens, max(s.num_prefill_tokens for s in mixed)
    rows = max(s.num_decode_tokens for s in decoding)
    target = max(16, rows + int((LONG_STEP - 1) * plain_ns / fit.prefill_ns))
    return found(
        Constraint.TOKEN_BUDGET,
        "Prefill steals from decode",
        share,
        f"a step takes {plain_ns / 1e6:.1f} ms without prefill and {long_ns / 1e6:.1f} ms (p95) with it, up "
        f"to {most} prompt tokens; {stolen:.0%} of the time of steps with decode rows is prefill.",
        (
            Advice("stages.schedule.options.itl_stretch", f"to {LONG_STEP:g}"),
            Advice("device.max_num_batched_tokens", f"instead, from {budget} to {min(target, budget)}"),
        ),
        f"long prompts take more steps: one of {most} tokens then {ceil(most / min(target, budget))} instead "
        f"of {ceil(most / budget)}, each with its base cost of {fit.base_ns / 1e6:.1f} ms; their TTFT grows.",
    )


def _too_small(facts: Facts) -> Finding | None:
    """Sequences wait while steps are full of tokens, and a step costs mostly its base."""
    fit, share = facts.step_fit, noticeable(facts, queue_blame(facts, Held.BUDGET))
    if share is None or fit is None or fit.fixed_share < 1.0 - MAX_MARGINAL:
        return None
    budget = facts.settings.max_num_batched_tokens
    return found(
        Constraint.TOKEN_BUDGET,
        "Steps are too small for the prompts",
        share,
        f"sequences waited for {facts.held[Held.BUDGET]:.0%} of that time because steps were full ({budget} "
        f"tokens), although {fit.fixed_share:.0%} of a step's time does not depend on its tokens.",
        (Advice("device.max_num_batched_tokens", f"from {budget} to {2 * budget}"),),
        "steps with a full prefill take longer, so ITL p99 of those who decode grows.",
    )
