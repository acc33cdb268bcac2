"""A client's sink where a batch may be taken back: it hears of one when that is known to be right."""

from typing import Any

from pipeline.core.answer import Answer
from pipeline.errors import RequestError
from pipeline.messages import Completion, TokenLogprob
from pipeline.runtime.hold import Hold


class HeldSink:
    """Implements ClientSink and LogprobsSink. While its hold is off it costs a call more.

    Args:
        sink: the client's, or the one for its logprobs.
    """

    __slots__ = ("_call", "sink")

    def __init__(self, sink: Any, hold: Hold) -> None:
        self.sink = sink
        self._call = hold.call

    def delta(self, text: str, num_tokens: int) -> None:
        self._call(self.sink.delta, text, num_tokens)

    def done(self, completion: Completion) -> None:
        self._call(self.sink.done, completion)

    def error(self, error: RequestError) -> None:
        self._call(self.sink.error, error)

    def logprobs(self, entries: list[TokenLogprob]) -> None:
        self._call(self.sink.logprobs, entries)

    def buffered_bytes(self) -> int:
        """What is held is not among them."""
        num_bytes: int = self.sink.buffered_bytes()
        return num_bytes

    def is_away(self) -> bool:
        is_away: bool = self.sink.is_away()
        return is_away


def hold_sinks(answer: Answer, hold: Hold) -> Answer:
    """The same answer."""
    if answer.is_gone:
        return answer
    answer.sink = HeldSink(answer.sink, hold)
    if answer.logprobs_sink is not None:
        answer.logprobs_sink = HeldSink(answer.logprobs_sink, hold)
    return answer


def bare_sinks(answer: Answer) -> Answer:
    """The same answer, with the clients' own sinks."""
    if isinstance(answer.sink, HeldSink):
        answer.sink = answer.sink.sink
    if isinstance(answer.logprobs_sink, HeldSink):
        answer.logprobs_sink = answer.logprobs_sink.sink
    return answer
