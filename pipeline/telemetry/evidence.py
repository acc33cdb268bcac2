"""Evidence: what a running server knows of a stretch of time, one value to be saved and judged later.

The sampler takes a Sample once a second; counters in it run since start, so that two samples give the rates
between them. The doctor judges Evidence and nothing else: from a live server, or from a file.
"""

import msgspec

from pipeline.telemetry.journal import RequestRecord, StepRecord


class StageSample(msgspec.Struct, frozen=True, gc=False):
    """One stage and its inbox. Counts and times since start but for depth and the two quantiles."""

    name: str
    workers: int
    depth: int
    bound: int
    peak_depth: int
    sent: int
    posted: int
    refused: int
    blocked: int
    """Sends that waited for room in this inbox,"""
    blocked_ns: int
    """and how long, all senders together."""
    num_batches: int
    num_messages: int
    busy_ns: int
    """Wall time inside handle(), all workers together."""
    num_waited: int = 0
    """Data messages that were taken from the inbox,"""
    waited_ns: int = 0
    """and how long they had waited there, all together."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The state of the server at one moment."""

    at_ns: int
    stages: tuple[StageSample, ...]
    """In data order."""
    num_live: int
    """Requests taken in and not yet ended."""
    num_refused: int
    """Refused at the door since start."""
    thread_cpu_ns: dict[str, int]
    """CPU time since start of the threads that are ours, by name: `loop`, `device`, `tokenize`."""
    process_cpu_ns: int
    rss_bytes: int
    loop_lag_ns: int
    """The longest that the loop came late to its own timer since the sample before."""
    gc_pauses: int
    """Collections since start, and"""
    gc_pause_ns: int
    """the time they stopped everything."""
    gc_longest_ns: int = 0
    """The longest of them since the sample before."""
    refused: dict[str, int] = {}
    """num_refused by code."""
    run_delay_ns: int = 0
    """How long the loop's thread has waited for a CPU, since start; 0 where that is not known."""
    num_received: int | None = None
    """Requests taken in since start; None: saved before this was counted."""


class Settings(msgspec.Struct, frozen=True):
    """What the numbers have to be seen against."""

    device: str
    """`cpu`, `cuda`, or `fake` for a runner that is neither."""
    num_cpus: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    credits: int
    tokenize_workers: int
    max_waiting: int
    max_live_requests: int


class Evidence(msgspec.Struct, frozen=True):
    """A window of time. `samples` holds at least first and last; records are those that ended in it."""

    begin_ns: int
    end_ns: int
    settings: Settings
    samples: tuple[Sample, ...]
    requests: tuple[RequestRecord, ...]
    steps: tuple[StepRecord, ...]
