"""Sequence: one request as the scheduler sees it."""

from dataclasses import dataclass, field

from pipeline.core.timeline import Clocked
from pipeline.messages import SamplingParams, TokenizedRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens known, tokens handed to the device, blocks held.

    Invariants: num_computed <= len(token_ids) + num_pending; blocks cover num_computed tokens;
    slot >= 0 exactly while running.
    """

    request_id: int
    token_ids: list[int]
    """Prompt, then output; grows as results are applied."""
    num_prompt_tokens: int
    max_len: int
    """Prompt and output tokens together, at which it ends."""
    sampling: SamplingParams
    clocked: Clocked
    epoch: int = 0
    """Rises at each preemption, so that results still in flight are told from new ones."""
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Tokens whose KV is written once the steps in flight are done."""
    num_pending: int = 0
    """Tokens being sampled by steps in flight: they count, but only the device knows them."""
    is_paused: bool = False
    is_started: bool = False

    @classmethod
    def of(cls, request: TokenizedRequest) -> "Sequence":
        """A waiting sequence. `sampling.max_tokens` must be resolved."""
        max_tokens = request.sampling.max_tokens
        assert max_tokens is not None, "tokenize resolves max_tokens"
        return cls(
            request_id=request.request_id,
            token_ids=request.token_ids,
            num_prompt_tokens=len(request.token_ids),
            max_len=len(request.token_ids) + max_tokens,
            sampling=request.sampling,
            clocked=Clocked(request.segments_ns, request.sent_ns),
        )

    @property
    def max_kv_tokens(self) -> int:
        """The most tokens it can come to hold KV for: the last token sampled is never fed back."""
        return self.max_len - 1

    def num_to_compute(self) -> int:
        """Tokens to catch up. 0 once the steps in flight already yield its last token.

        Prefill, a chunk of it, decode (1) and recompute after a preemption are all this one number.
        """
        num_tokens = len(self.token_ids) + self.num_pending
        return num_tokens - self.num_computed if num_tokens < self.max_len else 0
