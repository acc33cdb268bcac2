"""What is sent once for a request, or more rarely: one object each."""

from typing import Protocol

from pipeline.errors import RequestError
from pipeline.messages.disk import DiskReady
from pipeline.messages.parts import FinishReason, Message, Pooling
from pipeline.messages.sampling import SamplingParams, TokenLogprob


class ToolCall(Message, frozen=True):
    """A function that a model called, in the conversation so far."""

    id: str
    name: str
    arguments: str
    """A JSON object."""


class ImagePart(Message, frozen=True):
    """An image in a chat message."""

    at: int
    """Characters of the message's content before it."""
    field: str
    """Where its client wrote it, for errors."""
    data: str = ""
    """Its file in base64; empty once it has been read."""


class PromptImage(Message, frozen=True):
    """An image as the model takes it: kept with its request, since a preempted one is computed again."""

    pixels: bytes
    """[3, S, S] uint8, as the model's card says."""
    digest: bytes
    """BLAKE2b of the pixels: prompts with other images are others, though their token ids are the same."""
    start: int = 0
    """The first of its tokens in the prompt."""
    num_tokens: int = 0

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


class ChatMessage(Message, frozen=True):
    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant."""
    tool_call_id: str = ""
    """Of a tool: whose result it is."""
    images: tuple[ImagePart, ...] = ()
    """In the order of their places in `content`."""


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
    """ingress -> tokenize, with images by way of `images`. Exactly one of `prompt` and `chat` is set."""

    request_id: int
    prompt: str | list[int] | None
    chat: list[ChatMessage] | None
    sampling: SamplingParams
    arrived_ns: int
    sent_ns: int
    terms: Terms = Terms()
    tools: str = ""
    """What a chat's template is told of them: OpenAI's list, as JSON. Empty: there are none."""
    pooling: Pooling = ""
    num_image_tokens: int = 0
    """What the images of its messages come to in its prompt."""
    images: tuple[PromptImage, ...] = ()
    """Of its messages, in their order; from the stage `images` on."""


class TokenReply(Protocol):
    """Where tokenize puts the answer to a TokenCall. One of them, once; both return at once."""

    def tokens(self, value: list[int] | str) -> None: ...

    def error(self, error: RequestError) -> None: ...


class TokenCall(Message, frozen=True):
    """ingress -> tokenize: what are the token ids of this, or the text of these? Exactly one of `prompt`,
    `chat` and `token_ids` is set.
    """

    reply: TokenReply
    prompt: str | None = None
    chat: list[ChatMessage] | None = None
    token_ids: list[int] | None = None
    adds_special: bool = True
    """Of a prompt: with the BOS token, if the tokenizer adds one, as for a completion."""


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
    pooling: Pooling = ""
    """Where it is set, max_tokens is 1: the embedding counts as the one token that it yields."""
    images: tuple[PromptImage, ...] = ()
    """Rising in their places in token_ids, where each of their tokens is the model's image token."""


class Rejected(Message, frozen=True):
    """tokenize (or images) -> schedule -> stream: the request ends before it has a row."""

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


class Grant(Message, frozen=True):
    """ingress -> stream, control lane: the client takes so many more tokens of a request with credits."""

    request_id: int
    num_tokens: int


class Room(Message, frozen=True):
    """To schedule from the runtime, control lane: an outlet that was full has room again."""


class Wake(Message, frozen=True):
    """To schedule from itself, control lane: the time has come that its scheduler asked to be woken at."""


class ClearPins(Message, frozen=True):
    """To schedule from the admin port, control lane: nothing is pinned any more."""


class DeviceReady(Message, frozen=True):
    """execute -> schedule, control lane, at start and after each DeviceLost: what the device can hold."""

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


class DeviceLost(Message, frozen=True):
    """execute -> schedule, control lane: nothing that the device held counts any more. It is opened again
    once Reopen has come; then there is a DeviceReady.
    """

    reason: str
    is_out_of_memory: bool = False
    """A step was too large for it."""


class Reopen(Message, frozen=True):
    """schedule -> execute, control lane, the answer to DeviceLost: all planned so far is forgotten."""

    last_step_id: int


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
    embedding: bytes | None = None
    """What the request asked for, if that was one: see PooledRow."""
    scores: tuple[TokenLogprob, ...] = ()
    """Of its prompt's tokens, where it asked; the first has NO_VALUE."""


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

    def is_away(self) -> bool:
        """Its socket is lost, and it may come back: it is not slow."""
        ...


class LogprobsSink(Protocol):
    """Where the streamer puts what a request is told of its tokens. Returns at once; never raises."""

    def logprobs(self, entries: list[TokenLogprob]) -> None:
        """Of the tokens counted by the `delta` that follows at once, whose text may be empty."""
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
    logprobs_sink: LogprobsSink | None = None
    """Of a request that asked for logprobs: the same object as the sink."""
    credits: int | None = None
    """Tokens that the client takes before it grants more; None: all."""
    flush_tokens: int = 0
    flush_ms: float = 0.0
    """How its text may be merged, where coarser than the streamer's own rule."""
