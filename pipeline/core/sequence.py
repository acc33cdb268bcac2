"""Sequence: one request as the scheduler sees it."""

from dataclasses import dataclass, field

from pipeline.core.prefix import Prefix
from pipeline.core.retention import KEEP_ALL, Retention
from pipeline.core.timeline import Clocked
from pipeline.messages import Pooling, PromptImage, SamplingParams, Terms, TokenizedRequest

NOT_TOLD = -1


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens known, tokens handed to the device, blocks held.

    Invariants: num_computed <= num_tokens; blocks cover its num_computed - num_dropped entries while running;
    slot >= 0 exactly while running.
    """

    request_id: int
    token_ids: list[int]
    """Prompt, then output; grows as results are applied."""
    num_prompt_tokens: int
    num_tokens: int
    """Tokens known, and those that steps in flight are sampling, which only the device knows yet."""
    max_len: int
    """Prompt and output tokens together, at which it ends."""
    sampling: SamplingParams
    terms: Terms
    arrived_ns: int
    """When it came to the door."""
    clocked: Clocked
    pooling: Pooling = ""
    """It ends with its prompt, and yields an embedding: that counts as its one token, and has no row."""
    images: tuple[PromptImage, ...] = ()
    """Of its prompt; kept until it ends, for it may be computed again."""
    end_ids: frozenset[int] = frozenset()
    """Token ids that end it."""
    epoch: int = 0
    """Rises at each preemption, so that results still in flight are told from new ones."""
    slot: int = -1
    worker: int = 0
    """Which device worker computes it."""
    blocks: list[int] = field(default_factory=list)
    """Of its context: without those that were dropped."""
    num_told: int = 0
    """So many of them are in its worker's table; NOT_TOLD: it does not know the sequence yet."""
    num_computed: int = 0
    """Tokens that the device has, or has had, once the steps in flight are done."""
    retention: Retention = KEEP_ALL
    num_dropped: int = 0
    """Of num_computed, those whose blocks were dropped since it got its slot."""
    dropped_cols: list[int] = field(default_factory=list)
    """Those that its worker has not been told of."""
    num_dropped_tokens: int = 0
    """Dropped in its whole life."""
    is_asking: bool = False
    """The device has been asked which blocks to drop."""
    prefix: Prefix = field(default_factory=Prefix)
    num_cached_tokens: int = 0
    """Of the prompt, whose KV was found in the cache when it was first admitted."""
    num_scored: int = 0
    """Of the prompt's tokens, those of which was told how probable they are."""
    is_paused: bool = False
    is_fetching: bool = False
    """It waits, as long as it is new, for KV that comes from disk."""
    is_started: bool = False
    """The text side knows of it: from then on only a terminal row can end it."""
    predicted_tokens: int = 0
    """Output tokens that the length predictor expects of it in all."""
    rank: int = 0
    """Lower goes first; set and read by orders that have a static one (policies.keyed)."""
    num_passed: int = 0
    """How many others were admitted while it was first and did not fit,"""
    blocked_ns: int = 0
    """and since when it has not; see policies.bypass."""

    @classmethod
    def of(cls, request: TokenizedRequest) -> "Sequence":
        """A waiting sequence. `sampling.max_tokens` must be resolved."""
        max_tokens = request.sampling.max_tokens
        assert max_tokens is not None, "tokenize resolves max_tokens"
        return cls(
            request_id=request.request_id,
            token_ids=request.token_ids,
            num_prompt_tokens=len(request.token_ids),
            num_tokens=len(request.token_ids),
            max_len=len(request.token_ids) + max_tokens,
            sampling=request.sampling,
            terms=request.terms,
            arrived_ns=request.arrived_ns,
            clocked=Clocked(request.segments_ns, request.sent_ns),
            pooling=request.pooling,
            images=request.images,
        )

    @property
    def max_tokens(self) -> int:
        """Output tokens at which it ends."""
        return self.max_len - self.num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        """Output tokens known."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def max_kv_tokens(self) -> int:
        """The most tokens it can come to hold KV for: the last token sampled is never fed back."""
        return self.max_len - 1

    @property
    def num_entries(self) -> int:
        """Tokens that its context holds."""
        return self.num_computed - self.num_dropped

    @property
    def is_computed_whole(self) -> bool:
        """No token of it may be taken from where its KV is kept: the states of all of them are wanted. (Those
        of an embedding by its last token, which is never taken from a cache, are as in generation.)
        """
        return self.pooling == "mean" or self.sampling.prompt_logprobs is not None

    def scored_tokens(self, start: int, end: int) -> list[int]:
        """Tokens of the prompt whose probability the device is to tell when it computes positions start ...
        end - 1, each the one after the next of these.
        """
        if self.sampling.prompt_logprobs is None or self.num_scored == self.num_prompt_tokens:
            return []
        return self.token_ids[start + 1 : min(end + 1, self.num_prompt_tokens)]

    @property
    def is_held_out(self) -> bool:
        """It is not to be admitted now."""
        return self.is_paused or self.is_fetching

    def lose(self) -> None:
        """Nothing is left of what the device had of it: all its known tokens are to be computed again."""
        self.epoch += self.slot >= 0
        self.slot, self.blocks, self.dropped_cols = -1, [], []
        self.num_computed = self.num_dropped = self.num_told = 0
        self.num_tokens = len(self.token_ids)
        self.is_asking = False
        self.prefix = Prefix()

    def num_to_compute(self) -> int:
        """Tokens to catch up. 0 once the steps in flight already yield its last token.

        Prefill, a chunk of it, decode (1) and recompute after a preemption are all this one number.
        """
        return self.num_tokens - self.num_computed if self.num_tokens < self.max_len else 0
