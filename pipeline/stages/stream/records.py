"""What the journal is told of a request when it ends."""

from pipeline.core.answer import Answer
from pipeline.messages import Completion, Rejected
from pipeline.telemetry import Journal, RequestRecord


def tell_ended(journal: Journal, answer: Answer, completion: Completion) -> None:
    journal.request(_ended(answer, completion, journal.take_preempted(answer.request_id)))


def _ended(answer: Answer, completion: Completion, preempted_ns: tuple[int, ...]) -> RequestRecord:
    """`preempted_ns`: when it was."""
    timings = completion.timings
    return RequestRecord(
        request_id=answer.request_id,
        arrived_ns=answer.arrived_ns,
        e2e_ns=timings.e2e_ns,
        finish=completion.finish_reason.name.lower(),
        code="",
        num_prompt_tokens=completion.num_prompt_tokens,
        num_output_tokens=completion.num_output_tokens,
        num_preemptions=answer.num_preemptions,
        ttft_ns=timings.ttft_ns,
        segments_ns=timings.segments_ns,
        ttft_segments_ns=timings.ttft_segments_ns,
        paused_ns=answer.total_paused_ns,
        trace_parent=answer.trace_parent,
        parent_span_id=answer.parent_span_id,
        is_chat=answer.is_chat,
        preempted_ns=preempted_ns,
        num_cached_tokens=completion.num_cached_tokens,
        num_dropped_tokens=completion.num_dropped_tokens,
    )


def refused(answer: Answer, rejected: Rejected, now_ns: int) -> RequestRecord:
    return RequestRecord(
        request_id=answer.request_id,
        arrived_ns=answer.arrived_ns,
        e2e_ns=now_ns - answer.arrived_ns,
        finish="rejected",
        code=rejected.code or str(rejected.status),
        num_prompt_tokens=0,
        num_output_tokens=0,
        num_preemptions=0,
        ttft_ns=None,
        segments_ns=(),
        ttft_segments_ns=(),
        paused_ns=0,
        trace_parent=answer.trace_parent,
        parent_span_id=answer.parent_span_id,
        is_chat=answer.is_chat,
    )
