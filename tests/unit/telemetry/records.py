"""Records for tests: one life of a request with round numbers, and steps."""

from typing import Any

from msgspec.structs import replace

from pipeline.telemetry import RequestRecord, StepRecord

MS = 1_000_000
FIRST_MS = (1, 2, 3, 10, 1, 4, 20, 2, 1, 3, 1, 2, 5)
"""Up to the first token, by SEGMENTS: 55 ms in all, 11 of them for its text."""
ALL_MS = (1, 2, 3, 40, 5, 14, 120, 7, 4, 1, 2, 1, 8)
"""Up to the end: 208 ms in all, 12 of them for the last token's text."""


def request(**changed: Any) -> RequestRecord:
    """A chat of 100 + 8 tokens that arrived at 1000 ms and was preempted at 1100 ms."""
    record = RequestRecord(
        request_id=7,
        arrived_ns=1000 * MS,
        e2e_ns=sum(ALL_MS) * MS,
        finish="stop",
        code="",
        num_prompt_tokens=100,
        num_output_tokens=8,
        num_preemptions=1,
        ttft_ns=sum(FIRST_MS) * MS,
        segments_ns=tuple(value * MS for value in ALL_MS),
        ttft_segments_ns=tuple(value * MS for value in FIRST_MS),
        paused_ns=0,
        trace_parent="",
        is_chat=True,
        preempted_ns=(1100 * MS,),
        num_cached_tokens=96,
    )
    return replace(record, **changed)


def unserved(**changed: Any) -> RequestRecord:
    """The same, cancelled before its first token."""
    nothing = {"ttft_ns": None, "ttft_segments_ns": (), "num_output_tokens": 0}
    return request(**{"finish": "cancelled", "preempted_ns": (), "num_preemptions": 0} | nothing | changed)


def rejected(**changed: Any) -> RequestRecord:
    """The same, answered by the tokenizer with an error."""
    return unserved(
        **{"finish": "rejected", "code": "context_length_exceeded", "segments_ns": (), "e2e_ns": 4 * MS}
        | changed
    )


def step(step_id: int = 1, **changed: Any) -> StepRecord:
    """A step that is planned at 1000 ms + 10 ms * step_id, and runs for 6 ms from 2 ms later on."""
    planned_ns = (1000 + 10 * step_id) * MS
    record = StepRecord(
        step_id=step_id,
        planned_ns=planned_ns,
        begin_ns=planned_ns + 2 * MS,
        end_ns=planned_ns + 8 * MS,
        sampled_ns=planned_ns + 9 * MS,
        applied_ns=planned_ns + 9 * MS,
        host_gap_ns=MS,
        num_rows=5,
        num_prefill_tokens=60,
        num_decode_tokens=4,
        num_running=5,
        num_waiting=3,
        num_used_blocks=11,
        num_kv_tokens=150,
        num_preempted=0,
    )
    return replace(record, **changed)
