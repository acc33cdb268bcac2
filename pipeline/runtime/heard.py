"""Heard: sinks and replies that tell what they are given, for not all that a stage says is a message."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from pipeline.errors import RequestError
from pipeline.messages import ClientSink, Completion, LogprobsSink, Open, TokenCall, TokenLogprob
from pipeline.runtime.facts import Done, Failed, Replied, Spelled, Written

Hear = Callable[[object], None]


class HeardSink:
    """A client's sink, or one that takes everything. Each call is told as a message, then passed on."""

    def __init__(
        self,
        request_id: int,
        hear: Hear,
        sink: ClientSink | None = None,
        logprobs_sink: LogprobsSink | None = None,
    ) -> None:
        self._request_id = request_id
        self._hear = hear
        self._sink = sink
        self._logprobs_sink = logprobs_sink

    def delta(self, text: str, num_tokens: int) -> None:
        self._hear(Written(self._request_id, text, num_tokens))
        if self._sink is not None:
            self._sink.delta(text, num_tokens)

    def logprobs(self, entries: list[TokenLogprob]) -> None:
        self._hear(Spelled(self._request_id, list(entries)))
        if self._logprobs_sink is not None:
            self._logprobs_sink.logprobs(entries)

    def done(self, completion: Completion) -> None:
        self._hear(Done(self._request_id, completion))
        if self._sink is not None:
            self._sink.done(completion)

    def error(self, error: RequestError) -> None:
        self._hear(Failed(self._request_id, error))
        if self._sink is not None:
            self._sink.error(error)

    def buffered_bytes(self) -> int:
        return 0 if self._sink is None else self._sink.buffered_bytes()

    def is_away(self) -> bool:
        return False if self._sink is None else self._sink.is_away()


class HeardReply:
    """Likewise, for what a TokenCall is answered."""

    def __init__(self, call: TokenCall, hear: Hear) -> None:
        self._call = call
        self._hear = hear

    def tokens(self, value: list[int] | str) -> None:
        self._hear(Replied(self._call, value))
        self._call.reply.tokens(value)

    def error(self, error: RequestError) -> None:
        self._hear(Replied(self._call, error))
        self._call.reply.error(error)


def heard(message: Any, hear: Hear) -> Any:
    """A message to a stage. Where somebody to be told comes with it, what he is told goes to `hear` too."""
    if isinstance(message, Open):
        sink = HeardSink(message.request_id, hear, message.sink, message.logprobs_sink)
        return replace(message, sink=sink, logprobs_sink=None if message.logprobs_sink is None else sink)
    if isinstance(message, TokenCall):
        return replace(message, reply=HeardReply(message, hear))
    return message
