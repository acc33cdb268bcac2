"""Answer: what one client is owed. Text and tokens not yet written, and the times that go with its ending."""

import msgspec

from pipeline.core.coalesce import NEVER_NS, FlushRule
from pipeline.core.credit import Credit
from pipeline.messages import (
    SEGMENTS,
    STEP_SEGMENTS,
    ClientSink,
    Completion,
    FinishReason,
    Open,
    TextBatch,
    Timings,
    TokenLogprob,
)
from pipeline.messages.stand_ins import TakesAll

NEVER_DUE = 1 << 62
"""Later than any time of the clock, ns."""


class Ending(msgspec.Struct, frozen=True, gc=False):
    """A terminal row, as the streamer took it."""

    finish_reason: FinishReason
    segments_ns: tuple[int, ...]
    """All of SEGMENTS but the last, up to taken_ns."""
    taken_ns: int


class Gone(TakesAll):
    """The sink of a request whose client has been given up; its rows still come until it is cancelled."""


class Answer:
    """One request's state in the streamer; plain data, since it is touched for every token.

    Args:
        rule: the streamer's.
    """

    __slots__ = (
        "_asked",
        "arrived_ns",
        "base_ns",
        "credit",
        "due_ns",
        "embedding",
        "ending",
        "is_chat",
        "is_held_back",
        "last_ns",
        "logprobs",
        "logprobs_sink",
        "num_cached_tokens",
        "num_dropped_tokens",
        "num_pending",
        "num_preemptions",
        "num_prompt_tokens",
        "num_written",
        "parent_span_id",
        "paused_ns",
        "request_id",
        "rule",
        "scores",
        "sink",
        "spent_ns",
        "text",
        "total_paused_ns",
        "trace_parent",
        "ttft_ns",
        "ttft_segments_ns",
        "worker",
    )

    def __init__(self, opened: Open, rule: FlushRule) -> None:
        self.request_id = opened.request_id
        self.sink: ClientSink = opened.sink
        self.arrived_ns = opened.arrived_ns
        self.trace_parent = opened.trace_parent
        self.parent_span_id = opened.parent_span_id
        self.is_chat = opened.is_chat
        self._asked = FlushRule(opened.flush_tokens, int(opened.flush_ms * 1e6))
        self.go_by(rule)
        self.credit = None if opened.credits is None else Credit(opened.credits)
        self.base_ns: tuple[int, ...] = (0,) * len(SEGMENTS)
        self.worker = 0
        """The device worker whose totals `base_ns` goes with."""
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_dropped_tokens = 0
        self.num_preemptions = 0
        self.logprobs_sink = opened.logprobs_sink
        self.logprobs: list[TokenLogprob] = []
        """Of the pending tokens, where it asked."""
        self.embedding: bytes | None = None
        self.scores: list[TokenLogprob] = []
        """Of its prompt, where it asked."""
        self.text = ""
        self.num_pending = 0
        """Tokens since the last write, those without text included."""
        self.num_written = 0
        self.last_ns = NEVER_NS
        self.due_ns = NEVER_DUE
        """When the timer has to look at it."""
        self.ttft_ns: int | None = None
        self.ttft_segments_ns: tuple[int, ...] = ()
        self.paused_ns: int | None = None
        """Since when its client's buffer is full."""
        self.total_paused_ns = 0
        """How long it has been full before that."""
        self.ending: Ending | None = None
        """Its terminal row, which waits while the buffer is full, or for a grant."""
        self.spent_ns: int | None = None
        """Since when its credit is spent."""
        self.is_held_back = False
        """The scheduler has been told to plan no more of it."""

    def go_by(self, rule: FlushRule) -> None:
        """The streamer's rule is this from now on; what waits already is due when it was."""
        self.rule = rule.coarser(*self._asked)

    def copy(self) -> "Answer":
        """What happens to one leaves the other as it is; but they have the same sink."""
        other = object.__new__(Answer)  # copy.copy takes twice as long
        for name in Answer.__slots__:
            setattr(other, name, getattr(self, name))
        other.logprobs = self.logprobs.copy()
        other.scores = self.scores.copy()
        other.credit = None if self.credit is None else self.credit.copy()
        return other

    @property
    def is_gone(self) -> bool:
        """Its client has been given up."""
        return isinstance(self.sink, Gone)

    def give_up(self) -> None:
        """Its client is told nothing more."""
        if self.credit is not None:
            self.num_written += self.credit.discard()
        self.sink, self.logprobs_sink, self.credit = Gone(), None, None
        self.paused_ns = self.spent_ns = None
        self.logprobs.clear()

    def take(self) -> tuple[str, int]:
        """What is pending, text and tokens, counted as written."""
        text, num_tokens = self.text, self.num_pending
        self.text, self.num_pending = "", 0
        self.num_written += num_tokens
        return text, num_tokens

    def tell_logprobs(self) -> None:
        """Hand over those of the tokens that are written next."""
        if self.logprobs_sink is not None and self.logprobs:
            num_told = len(self.logprobs) - (0 if self.credit is None else self.credit.num_held)
            told, self.logprobs = self.logprobs[:num_told], self.logprobs[num_told:]
            self.logprobs_sink.logprobs(told)

    @property
    def may_end(self) -> bool:
        """Nothing keeps its terminal row from its client."""
        return self.paused_ns is None and not (self.credit is not None and self.credit.has_held)

    def end(self, step: TextBatch, finish_reason: FinishReason, taken_ns: int) -> Ending:
        """The terminal row is in `step`, taken at `taken_ns`: from here on `ending` is set."""
        self.ending = Ending(finish_reason, self._segments(step, taken_ns), taken_ns)
        return self.ending

    def first(self, step: TextBatch, taken_ns: int, now_ns: int) -> None:
        """The first token was written at `now_ns`; `step`, taken at `taken_ns`, is the latest that came."""
        self.ttft_ns = now_ns - self.arrived_ns
        self.ttft_segments_ns = (*self._segments(step, taken_ns), now_ns - taken_ns)

    def completion(self, ending: Ending, now_ns: int) -> Completion:
        """For the sink, when the last text was written at `now_ns`."""
        return Completion(
            ending.finish_reason,
            self.num_prompt_tokens,
            self.num_written + self.num_pending,
            Timings(
                (*ending.segments_ns, now_ns - ending.taken_ns),
                now_ns - self.arrived_ns,
                self.ttft_ns,
                self.ttft_segments_ns,
            ),
            self.num_cached_tokens,
            self.num_dropped_tokens,
            self.embedding,
            tuple(self.scores),
        )

    def _segments(self, step: TextBatch, taken_ns: int) -> tuple[int, ...]:
        """All of SEGMENTS but the last, up to `taken_ns`."""
        segments = list(self.base_ns)
        num = STEP_SEGMENTS.stop - STEP_SEGMENTS.start
        elapsed_ns = step.elapsed_ns[self.worker * num : (self.worker + 1) * num]
        for index, value_ns in enumerate(elapsed_ns, STEP_SEGMENTS.start):
            segments[index] += value_ns
        segments[STEP_SEGMENTS.stop :] = (
            step.taken_ns - step.token_sent_ns,
            step.sent_ns - step.taken_ns,
            taken_ns - step.sent_ns,
        )
        return tuple(segments)
