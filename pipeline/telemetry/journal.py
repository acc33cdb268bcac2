"""The journal: the latest requests, steps and swaps of stages, one record each, in bounded rings.

A request is written once, when it ends; a step once, when it is applied; a swap once, when it is decided.
From these the slow-request log, the spans, the live page and the doctor take all they say, so that nothing
else is kept anywhere.
"""

from collections.abc import Callable

import msgspec

from pipeline.telemetry.ring import Ring

NUM_REQUESTS = 4096
NUM_STEPS = 16_384
NUM_PREEMPTED = 4096
NUM_SWAPS = 256


class RequestRecord(msgspec.Struct, frozen=True, gc=False):
    """One ended request. Times are of one monotonic clock; sum(segments_ns) == e2e_ns where there are any."""

    request_id: int
    arrived_ns: int
    e2e_ns: int
    finish: str
    """stop, length, cancelled or error; `rejected` where it was answered before it had a row."""
    code: str
    """Of a rejected one, else empty."""
    num_prompt_tokens: int
    num_output_tokens: int
    num_preemptions: int
    ttft_ns: int | None
    segments_ns: tuple[int, ...]
    """messages.SEGMENTS; empty for a rejected one."""
    ttft_segments_ns: tuple[int, ...]
    """The same up to the first token's write: their sum is ttft_ns. Empty if it has none."""
    paused_ns: int
    """How long its client's buffer was full; part of the segments it overlaps, not one more."""
    trace_parent: str
    """The W3C traceparent of this request's own span, or empty."""
    parent_span_id: str = ""
    """The caller's span, or empty."""
    is_chat: bool = False
    preempted_ns: tuple[int, ...] = ()
    """When each of its preemptions was planned."""
    num_cached_tokens: int = 0
    """Of the prompt, whose KV another request had left (core.prefix_cache)."""
    num_dropped_tokens: int = 0
    """Whose KV was given up while it went on (core.retention)."""


class StepRecord(msgspec.Struct, frozen=True, gc=False):
    """One model step."""

    step_id: int
    planned_ns: int
    begin_ns: int
    """The device began."""
    end_ns: int
    """The device ended."""
    sampled_ns: int
    applied_ns: int
    host_gap_ns: int
    """How long the device had waited for this step although it held rows that could have gone on."""
    num_rows: int
    num_prefill_tokens: int
    """Prompt tokens, and tokens recomputed after a preemption."""
    num_decode_tokens: int
    num_running: int
    """Sequences with a device slot, when planned."""
    num_waiting: int
    num_used_blocks: int
    num_kv_tokens: int
    """Tokens that the running sequences have KV of; those in shared blocks count for each of them."""
    num_preempted: int
    """Sequences that this plan sent back to the queue."""
    worker: int = 0
    """The device worker it ran on; steps of different ones may overlap."""
    num_shared_tokens: int = 0
    """Of num_kv_tokens, those counted again. What the rest lacks to full blocks is fragmentation."""


class SwapRecord(msgspec.Struct, frozen=True, gc=False):
    """Another one was to take a stage's place."""

    at_ns: int
    """When it was decided."""
    stage: str
    was: str
    """Import path of the class that served,"""
    now: str
    """and of the one that was to serve."""
    ending: str
    """runtime.swapped.Ending."""
    reason: str
    """Why the one that served still does, else empty."""
    paused_ns: int
    """How long nobody took from the stage's inbox when it was handed over."""


class Journal:
    """The rings, and who wants to hear of each ended request at once. Single loop."""

    def __init__(self, num_requests: int = NUM_REQUESTS, num_steps: int = NUM_STEPS) -> None:
        self._requests = Ring(RequestRecord, num_requests)
        self._steps = Ring(StepRecord, num_steps)
        self._swaps = Ring(SwapRecord, NUM_SWAPS)
        self._listeners: list[Callable[[RequestRecord], None]] = []
        self._step_listeners: list[Callable[[StepRecord], None]] = []
        self._preempted: dict[int, tuple[int, ...]] = {}

    def request(self, record: RequestRecord) -> None:
        self._requests.append(record)
        for listener in self._listeners:
            listener(record)

    def step(self, record: StepRecord) -> None:
        self._steps.append(record)
        for listener in self._step_listeners:
            listener(record)

    def swap(self, record: SwapRecord) -> None:
        self._swaps.append(record)

    def preempted(self, request_id: int, at_ns: int) -> None:
        """Remember a preemption until the request's record is written."""
        preempted = self._preempted
        preempted[request_id] = (*preempted.get(request_id, ()), at_ns)
        if len(preempted) > NUM_PREEMPTED:  # heard of after their request had ended: nobody takes them
            del preempted[next(iter(preempted))]

    def take_preempted(self, request_id: int) -> tuple[int, ...]:
        """When the request was preempted, for its record."""
        return self._preempted.pop(request_id, ())

    def listen(self, listener: Callable[[RequestRecord], None]) -> None:
        """Call back with every request that ends from now on. It must return at once and not raise."""
        self._listeners.append(listener)

    def listen_steps(self, listener: Callable[[StepRecord], None]) -> None:
        """The same with every step that is applied."""
        self._step_listeners.append(listener)

    def requests(self, since_ns: int = 0) -> list[RequestRecord]:
        """Those that ended at or after `since_ns`, in the order of their endings."""
        return self._requests.since(since_ns, lambda record: record.arrived_ns + record.e2e_ns)

    def steps(self, since_ns: int = 0) -> list[StepRecord]:
        """Those applied at or after `since_ns`, oldest first."""
        return self._steps.since(since_ns, lambda record: record.applied_ns)

    def swaps(self, since_ns: int = 0) -> list[SwapRecord]:
        """Those decided at or after `since_ns`, oldest first."""
        return self._swaps.since(since_ns, lambda record: record.at_ns)
