"""Every message that crosses a link, grouped by what it is counted in. No behaviour here.

Per request (rare): one object a request. Per step (hot): one object a model step, columnar, row i of every
column belongs to the same sequence; whoever emits a list gives it away. Ids and times (`_ns`) are ints.
"""

from enum import IntEnum
from typing import Protocol

import msgspec

from pipeline.disk_messages import DiskReady
from pipeline.errors import RequestError

NO_TOKEN = -1
"""TokenBatch: the row ends its sequence without a token. StepPlan: the input token is still on the device."""

SEGMENTS = (
    "ingress.service",
    "tokenize.wait",
    "tokenize.service",
    "schedule.wait",
    "schedule.service",
    "execute.wait",
    "execute.service",
    "sample.wait",
    "sample.service",
    "detokenize.wait",
    "detokenize.service",
    "stream.wait",
    "stream.service",
)
"""The parts of a request's life, in order; together they are its end-to-end time."""

STEP_SEGMENTS = slice(3, 9)
"""The part of SEGMENTS that is spent on the step cycle and accounted per step (core.timeline)."""


class FinishReason(IntEnum):
    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    ERROR = 4


class Message(msgspec.Struct, frozen=True, gc=False):
    """Base of all messages; gc=False because a message never refers back to what holds it."""


# Per request ------------------------------------------------------------------------------------


class SamplingParams(Message, frozen=True):
    """How one request's tokens are chosen. Checked at the door (core.wire), trusted from there on."""

    max_tokens: int | None = None
    """None until tokenize knows the prompt's length and fills it in."""
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    seed: int = 0
    """The door draws one where the client gave none; noise is keyed by (seed, position)."""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class ChatMessage(Message, frozen=True):
    role: str
    content: str


class Terms(Message, frozen=True):
    """What a request asks of the scheduler, beside its tokens."""

    tenant: str = ""
    """Who sent it, for fairness; empty: nobody in particular."""
    priority: int = 0
    """Higher is sooner, where the policy is `priority`."""
    ttft_target_ms: float | None = None
    """When the first token should be out, and"""
    tpot_target_ms: float | None = None
    """the time per token after it; for the policy `deadline` and for goodput."""
    patience_ms: float | None = None
    """How long the client will wait for its first token; None: the server's max_wait_ms."""
    cache_salt: str = ""
    """KV is shared only between requests of one tenant that have the same."""
    kv_eviction: str = ""
    kv_budget: int | None = None
    kv_sinks: int | None = None
    """What of its context stays in KV memory, by the rules of core.retention; none of them: the server's."""
    cache_pin: bool = False
    """The full blocks of its prompt are to stay cached when it has ended."""


class GenerateRequest(Message, frozen=True):
    """ingress -> tokenize. Exactly one of `prompt` and `chat` is set."""

    request_id: int
    prompt: str | list[int] | None
    chat: list[ChatMessage] | None
    sampling: SamplingParams
    arrived_ns: int
    sent_ns: int
    terms: Terms = Terms()


class TokenizedRequest(Message, frozen=True):
    """tokenize -> schedule. `sampling.max_tokens` is set and fits the model's length."""

    request_id: int
    token_ids: list[int]
    sampling: SamplingParams
    arrived_ns: int
    sent_ns: int
    segments_ns: tuple[int, int, int]
    """ingress.service, tokenize.wait, tokenize.service; their sum is sent_ns - arrived_ns."""
    terms: Terms = Terms()


class Rejected(Message, frozen=True):
    """tokenize -> schedule -> stream: the request ends before it has a row."""

    request_id: int
    message: str
    status: int
    param: str | None
    code: str | None
    retry_after_s: int | None = None
    """See RequestError."""

    @classmethod
    def of(cls, request_id: int, error: RequestError) -> "Rejected":
        return cls(request_id, error.message, error.status, error.param, error.code, error.retry_after_s)


class Cancel(Message, frozen=True):
    """To schedule, control lane. STOP: detokenize has ended it already, so no row is owed."""

    request_id: int
    reason: FinishReason


class Pause(Message, frozen=True):
    """stream -> schedule, control lane: plan no more of this request until Resume."""

    request_id: int


class Resume(Message, frozen=True):
    request_id: int


class Room(Message, frozen=True):
    """To schedule from the runtime, control lane: an outlet that was full has room again."""


class Wake(Message, frozen=True):
    """To schedule from itself, control lane: the time has come that its scheduler asked to be woken at."""


class ClearPins(Message, frozen=True):
    """To schedule from the admin port, control lane: nothing is pinned any more."""


class DeviceReady(Message, frozen=True):
    """execute -> schedule, control lane, once at start: what the device can hold."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    device: str = "fake"
    """`cpu`, `cuda`, or `fake` for a runner that is neither."""
    num_host_blocks: int = 0
    block_copy_ns: int = 0
    """KV blocks that host memory holds, and what copying one there takes, or back; 0: not known."""
    block_bytes: int = 0
    disk: DiskReady | None = None


class Timings(Message, frozen=True):
    """Where one request's time went. sum(segments_ns) == e2e_ns."""

    segments_ns: tuple[int, ...]
    e2e_ns: int
    ttft_ns: int | None
    """Arrival to the first token's write; None if it has none."""
    ttft_segments_ns: tuple[int, ...] = ()
    """The segments up to the first token's write: their sum is ttft_ns. Empty if it has none."""


class Completion(Message, frozen=True):
    """How a request ended, for its sink."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    timings: Timings
    num_cached_tokens: int = 0
    """Of the prompt, that were not computed."""
    num_dropped_tokens: int = 0


class ClientSink(Protocol):
    """Where the streamer puts one request's text. Every call returns at once; none may raise.

    Calls: any number of `delta`, then exactly one of `done` and `error`.
    """

    def delta(self, text: str, num_tokens: int) -> None: ...

    def done(self, completion: Completion) -> None: ...

    def error(self, error: RequestError) -> None: ...

    def buffered_bytes(self) -> int:
        """Bytes accepted for this client and not yet taken by its socket."""
        ...


class Open(Message, frozen=True):
    """ingress -> stream, control lane, posted in the same loop tick as the request it belongs to."""

    request_id: int
    sink: ClientSink
    arrived_ns: int
    trace_parent: str = ""
    """The W3C traceparent of the request's own span; empty: nobody asked for one."""
    parent_span_id: str = ""
    """The caller's span; empty: the request's own is the first of its trace."""
    is_chat: bool = False


# Per step ---------------------------------------------------------------------------------------


class Admitted(Message, frozen=True):
    """A sequence takes a device slot of this worker with this step (again, after a preemption)."""

    slot: int
    sampling: SamplingParams
    request_id: int
    num_dropped: int = 0
    """Tokens of it whose blocks are not in its table any more."""
    sinks: int = 0
    window: int = 0
    """See gpu.api.StepInputs.windows."""
    is_weighed: bool = False
    """How much each of its blocks is attended to is added up, for `questions` to come."""


class DropQuestion(Message, frozen=True):
    """Which of the columns first_col ... end_col - 1 of a row's table were attended to least so far?"""

    row: int
    num_drops: int
    first_col: int
    end_col: int


class StepPlan(Message, frozen=True):
    """schedule -> execute: one forward pass over packed rows, prefill and decode mixed.

    Row i computes `num_tokens[i]` tokens at positions num_computed[i] ... of the sequence in device
    slot `slots[i]`. Before the pass, one after the other, column dropped_cols[k] is taken out of the table of
    slot dropped_slots[k], and those after it move up; then block_ids[j] becomes column block_cols[j] of
    slot block_slots[j]. A token is at the entry of its position, less the tokens dropped so far. Each worker
    launches its steps in the order of step_id, so a freed block may be given to another sequence in a later
    plan of that worker while an earlier one is still in flight. In each layer the KV of all rows is written
    before any row reads: a row may read what another row of its step computes.
    """

    step_id: int
    planned_ns: int
    request_ids: list[int]
    epochs: list[int]
    """Rises when a sequence is preempted; a result of an older epoch is dropped."""
    slots: list[int]
    num_tokens: list[int]
    num_computed: list[int]
    samples: list[bool]
    """True where the row reaches the end of its sequence and yields a token."""
    token_ids: list[int]
    """Packed over rows, sum(num_tokens) long; NO_TOKEN = the last token sampled in that slot."""
    admitted: list[Admitted]
    block_slots: list[int]
    block_cols: list[int]
    block_ids: list[int]
    saved_ids: list[int] = []
    """Before all else, block saved_ids[j] is copied to place saved_places[j] in host memory;"""
    saved_places: list[int] = []
    loaded_places: list[int] = []
    """then what is at loaded_places[j] to block loaded_ids[j]."""
    loaded_ids: list[int] = []
    worker: int = 0
    """Which device worker runs it; slots are each worker's own, blocks are shared."""
    dropped_slots: list[int] = []
    dropped_cols: list[int] = []
    questions: list[DropQuestion] = []


class StepHandle(Protocol):
    """execute -> sample: one launched step. Owned by the device worker's side."""

    @property
    def plan(self) -> StepPlan: ...

    @property
    def begin_ns(self) -> int:
        """When the device began the step."""
        ...

    def is_ready(self) -> bool: ...

    def token_ids_sync(self) -> list[int]:
        """One token id per row whose `samples` is True, in row order. Waits for the device."""
        ...

    def drops_sync(self) -> list[list[int]]:
        """Columns, ascending, for each of the plan's questions. Waits for the device."""
        ...

    @property
    def end_ns(self) -> int:
        """When the device ended the step; valid once `is_ready()`."""
        ...


class SampledBatch(Message, frozen=True):
    """sample -> schedule, control lane: the tokens of one step's sampling rows."""

    step_id: int
    request_ids: list[int]
    epochs: list[int]
    token_ids: list[int]
    times_ns: tuple[int, int, int, int, int]
    """planned, device begin, device end, taken by sample, sent by sample."""
    drops: list[list[int]] = []
    """Columns for each of the plan's questions."""


class Started(Message, frozen=True):
    """A request's first row is in this batch: what the text side must know of it."""

    request_id: int
    num_prompt_tokens: int
    stop: tuple[str, ...]
    num_cached_tokens: int = 0
    """Of the prompt, whose KV another request had left."""


class SequenceTimes(Message, frozen=True):
    """base_ns + (0, ..., its worker's TokenBatch.elapsed_ns, ..., 0) is the request's segments up to that
    batch's sent_ns.

    Sent when a sequence starts, resumes, has blocks dropped or ends, so that a token costs no accounting.
    """

    request_id: int
    base_ns: tuple[int, ...]
    num_preemptions: int = 0
    """Of this request, so far."""
    worker: int = 0
    """Whose totals in elapsed_ns those are."""
    num_dropped_tokens: int = 0
    """Of this request's context, so far."""


class TokenBatch(Message, frozen=True):
    """schedule -> detokenize: one step's tokens, and the rows that end without one."""

    step_id: int
    request_ids: list[int]
    token_ids: list[int]
    finish_reasons: list[int]
    started: list[Started]
    times: list[SequenceTimes]
    elapsed_ns: tuple[int, ...]
    """Running totals of SEGMENTS[STEP_SEGMENTS] over all steps so far, one device worker after another."""
    sent_ns: int


class TextBatch(Message, frozen=True):
    """detokenize -> stream: the same rows as text. A row of one request may carry several tokens."""

    step_id: int
    request_ids: list[int]
    texts: list[str]
    num_tokens: list[int]
    finish_reasons: list[int]
    started: list[Started]
    times: list[SequenceTimes]
    elapsed_ns: tuple[int, ...]
    token_sent_ns: int
    taken_ns: int
    sent_ns: int
