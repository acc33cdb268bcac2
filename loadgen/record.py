"""What happened to one request, and its metrics. All times are seconds after the start of the run.

Definitions (printed beside every report):
  TTFT  intended send -> first frame that holds a generated token
  E2E   intended send -> last frame that holds a generated token; usage and [DONE] frames do not extend it
  raw   TTFT and E2E from when the request was really sent: what a generator that runs late would report
  ITL   gap between two such frames of one request; a frame of k tokens makes one gap
  TPOT  (E2E - TTFT) / (output tokens - 1); none for fewer than two tokens
"""

from typing import Any, Literal

import msgspec

_SHED = frozenset(
    (
        "http_429",
        "http_503",
        "error_queue_full",
        "error_queue_wait",
        "error_wait_too_long",
        "error_too_many_requests",
        "error_draining",
    )
)
"""Over SSE a status; on the WebSocket this project's codes, for its error frames have no status."""


class Failure(msgspec.Struct, frozen=True):
    """Why a request has no complete answer."""

    reason: str
    """A short word to count by: http_429, unterminated, disconnected, timeout, ..."""
    message: str

    @property
    def is_shed(self) -> bool:
        """The server turned the request away because it had too much to do (429, 503)."""
        return self.reason in _SHED


class ServerTimings(msgspec.Struct, frozen=True):
    """Where this project's server says that a request's time went, in milliseconds (docs/api.md)."""

    e2e_ms: float
    ttft_ms: float | None
    segments_ms: dict[str, float]
    """By segment, in order; they add up to `e2e_ms`."""


class Record(msgspec.Struct):
    """One request as the client saw it. Clients write it while it runs; nobody writes it afterwards."""

    index: int
    intended_s: float
    """When the trace says it is sent; latencies count from here, so that waiting is never hidden."""
    planned_input: int | None
    """None: the text was given, and only the server knows its length."""
    planned_output: int
    sent_s: float | None = None
    first_byte_s: float | None = None
    """First frame of any kind, or the response's headers: the server has taken notice."""
    chunk_s: list[float] = []
    """Arrival of each frame that held at least one token. Role, ping and usage frames are not here."""
    chunk_tokens: list[int] = []
    """Tokens in each of them; 0 where the protocol does not say (SSE)."""
    answer_s: float | None = None
    """First frame of the visible answer: later than the first token where a model reasons first."""
    closed_s: float | None = None
    finish_reason: str | None = None
    input_tokens: int | None = None
    """From the server's usage, as is `output_tokens`; None if it sent none."""
    output_tokens: int | None = None
    failure: Failure | None = None
    first_failure: Failure | None = None
    """Why the first try gave nothing, where the client tried once more."""
    retry_after_s: float | None = None
    """How long the server asked to wait when it refused."""
    ended_by: Literal["server", "client"] = "server"
    """"client": it was ended on purpose (patience, a planned cancel), which is no failure and no answer."""
    abandoned: bool = False
    """Ended by the client because its patience ran out; false for a planned cancel."""
    request_name: str | None = None
    """The id of the request on the wire."""
    server_timings: ServerTimings | None = None
    """If the server was asked and says."""
    text: str | None = None
    """The visible answer; None: not kept."""

    def chunk(self, now_s: float, num_tokens: int, *, is_answer: bool = True) -> None:
        """A frame with tokens came; `num_tokens` 0 = the protocol does not say how many."""
        self.chunk_s.append(now_s)
        self.chunk_tokens.append(num_tokens)
        if is_answer and self.answer_s is None:
            self.answer_s = now_s

    def say(self, text: str) -> None:
        """A piece of the visible answer came, in a frame of any kind."""
        if self.text is not None:
            self.text += text

    def usage(self, input_tokens: int, output_tokens: int) -> None:
        self.input_tokens, self.output_tokens = input_tokens, output_tokens

    def fail(self, reason: str, message: str) -> None:
        """The first failure is the cause; later ones follow from it."""
        if self.failure is None:
            self.failure = Failure(reason, message)

    def try_again(self) -> None:
        """What came so far is of a first try, that gave no token."""
        self.first_failure, self.failure = self.failure, None
        self.first_byte_s = self.request_name = None

    @property
    def is_finished(self) -> bool:
        """A whole answer came."""
        return self.failure is None and self.ended_by == "server"

    @property
    def num_tokens_seen(self) -> int:
        """Output tokens so far; a frame that does not say counts as one."""
        return sum(count or 1 for count in self.chunk_tokens)

    @property
    def num_output(self) -> int:
        """Output tokens by the server's usage, else as seen."""
        return self.num_tokens_seen if self.output_tokens is None else self.output_tokens

    @property
    def lateness_s(self) -> float | None:
        """How late the generator itself was."""
        return None if self.sent_s is None else self.sent_s - self.intended_s

    @property
    def ttft_s(self) -> float | None:
        return self.chunk_s[0] - self.intended_s if self.chunk_s else None

    @property
    def e2e_s(self) -> float | None:
        return self.chunk_s[-1] - self.intended_s if self.chunk_s else None

    @property
    def raw_ttft_s(self) -> float | None:
        return self.chunk_s[0] - self.sent_s if self.chunk_s and self.sent_s is not None else None

    @property
    def raw_e2e_s(self) -> float | None:
        return self.chunk_s[-1] - self.sent_s if self.chunk_s and self.sent_s is not None else None

    @property
    def tpot_s(self) -> float | None:
        if not self.chunk_s or self.num_output < 2:
            return None
        return (self.chunk_s[-1] - self.chunk_s[0]) / (self.num_output - 1)

    @property
    def itl_s(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.chunk_s, self.chunk_s[1:], strict=False)]

    def as_dict(self) -> dict[str, Any]:
        """Everything above, with the metrics in it, for result.json."""
        metrics = {
            "ttft_s": self.ttft_s,
            "raw_ttft_s": self.raw_ttft_s,
            "e2e_s": self.e2e_s,
            "raw_e2e_s": self.raw_e2e_s,
            "tpot_s": self.tpot_s,
        }
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields | metrics
