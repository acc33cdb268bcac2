"""What is sent once a model step (hot): columnar, row i of every column belongs to the same sequence.

Whoever emits a list gives it away.
"""

from typing import NamedTuple, Protocol

from pipeline.messages.parts import Message, Pooling
from pipeline.messages.requests import PromptImage
from pipeline.messages.sampling import Logprobs, SamplingParams, SpelledLogprobs


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
    num_prompt_tokens: int = 0
    """Tokens of it from this position on are output."""
    token_ids: list[int] = []
    """Prompt and output so far, where sampling.follows_tokens; else empty. The device counts what it samples
    in the slot from then on itself."""
    pooling: Pooling = ""
    """Which of its tokens' hidden states are added up, from its first token on."""
    images: tuple[PromptImage, ...] = ()
    """Those of its prompt that have tokens which are not computed yet."""


MAX_SCORES = 64
"""Tokens of prompts that one step tells the probabilities of."""


class DropQuestion(Message, frozen=True):
    """Which of the columns first_col ... end_col - 1 of a row's table were attended to least so far?"""

    row: int
    num_drops: int
    first_col: int
    end_col: int


class Scored(Message, frozen=True):
    """How probable are these, each after one of the first tokens of a row?"""

    row: int
    token_ids: list[int]
    num_top: int
    """Alternatives that are told with each."""


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
    pooled: list[int] = []
    """Rows, rising, that reach the end of a sequence which yields no token but its embedding."""
    scored: list[Scored] = []
    """By row, rising; together at most MAX_SCORES tokens."""


class StepHandle(Protocol):
    """execute -> sample: one launched step. Owned by the device worker's side."""

    @property
    def plan(self) -> StepPlan: ...

    @property
    def begin_ns(self) -> int:
        """When the device began the step; valid once `is_ready()`."""
        ...

    def is_ready(self) -> bool: ...

    def token_ids_sync(self) -> list[int]:
        """One token id per row whose `samples` is True, in row order; NO_TOKEN: its grammar has failed, which
        ends the request with an error. Waits for the device.
        """
        ...

    def drops_sync(self) -> list[list[int]]:
        """Columns, ascending, for each of the plan's questions. Waits for the device."""
        ...

    def logprobs_sync(self) -> Logprobs | None:
        """Of the sampling rows whose requests asked, in row order; None: none did. Waits for the device."""
        ...

    def scores_sync(self) -> Logprobs | None:
        """Of the plan's scored tokens, in their order; None: there are none. Waits for the device."""
        ...

    def embeddings_sync(self) -> list[bytes]:
        """See PooledRow.embedding; of each of the plan's pooled rows. Waits for the device."""
        ...

    @property
    def end_ns(self) -> int:
        """When the device ended the step; valid once `is_ready()`."""
        ...


class PooledRow(NamedTuple):
    """A row that yielded an embedding."""

    request_id: int
    epoch: int
    embedding: bytes
    """[C] fp32, little endian, of length 1 (L2). All NaN where the model's states are no numbers."""


class SampledBatch(Message, frozen=True):
    """sample -> schedule, control lane: the tokens of one step's sampling rows."""

    step_id: int
    request_ids: list[int]
    epochs: list[int]
    token_ids: list[int]
    """NO_TOKEN: the row ends its sequence with an error."""
    times_ns: tuple[int, int, int, int, int]
    """planned, device begin, device end, taken by sample, sent by sample."""
    drops: list[list[int]] = []
    """Columns for each of the plan's questions."""
    logprobs: Logprobs | None = None
    pooled: list[PooledRow] = []
    """Beside the rows that sampled."""
    scores: Logprobs | None = None
    """Of the plan's scored tokens."""


class Started(Message, frozen=True):
    """A request's first row is in this batch: what the text side must know of it."""

    request_id: int
    num_prompt_tokens: int
    stop: tuple[str, ...]
    num_cached_tokens: int = 0
    """Of the prompt, whose KV another request had left."""
    tenant: str = ""
    min_tokens: int = 0
    includes_stop: bool = False
    skips_special: bool = True
    unstopped: tuple[str, str, bool] | None = None
    """See SamplingParams."""


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
    logprobs: Logprobs | None = None
    """Of those tokens in it whose requests asked."""
    embeddings: dict[int, bytes] = {}
    """By request id, of terminal rows without a token."""
    scores: Logprobs | None = None
    """Of prompts, the first token of each included, which has NO_VALUE. Their requests need have no row."""


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
    logprobs: SpelledLogprobs | None = None
    embeddings: dict[int, bytes] = {}
    """See TokenBatch."""
    scores: SpelledLogprobs | None = None
    """Likewise."""
