"""Server-sent events: the choices of one answer, written to one connection."""

import asyncio
from collections.abc import Callable
from typing import Literal

from pipeline.core.framing import http_chunk
from pipeline.core.wire import AnswerShape, StreamShape
from pipeline.core.wire.answers import PING
from pipeline.errors import RequestError
from pipeline.messages import Completion
from pipeline.stages.ingress.intake import Intake, LiveRequest
from pipeline.stages.ingress.patience import unread_bytes


class SseStream:
    """Writes events straight to the transport, from the streamer's task.

    A handler task that is woken for each event would cost 15 us more. It is sound beside aiohttp's own writer
    because that one writes the head at once in `prepare()` (StreamResponse, unlike Response, does not hold it
    back), then nothing before the handler calls `write_eof()`, which only adds the last chunk; and because
    every write here is whole chunks. Before `open()` events are held, so that a request which is refused
    first gets a real status.
    """

    def __init__(self, answer: AnswerShape, clock: Callable[[], int]) -> None:
        self.answer = answer
        self._completions: list[Completion | None] = [None] * len(answer.choices)
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._is_chunked = True
        self._held: list[bytes] = []
        self._news = asyncio.Event()
        self._written_ns = clock()
        self.has_ended = False
        self.refusal: RequestError | None = None
        """Why the request failed, if it did before `open()`."""

    async def news(self, timeout_s: float | None) -> None:
        """Wait for the first event, and once open for the last one, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            pass

    def open(self, transport: asyncio.Transport, *, is_chunked: bool) -> None:
        """The head is out: write what was held, and from now on write through."""
        self._transport, self._is_chunked = transport, is_chunked
        held, self._held = b"".join(self._held), []
        if held:
            self._send(transport, held)  # also where the stream has ended meanwhile
        if not self.has_ended:
            self._news.clear()

    def silence_s(self) -> float:
        return (self._clock() - self._written_ns) / 1e9

    def ping(self, mode: Literal["comment", "chunk"]) -> None:
        self.write(PING if mode == "comment" else self.answer.choices[0].delta(""))

    def done(self, index: int, completion: Completion) -> None:
        """A choice has finished; the last one ends the stream."""
        self._completions[index] = completion
        finished = self.answer.choices[index].finish(completion)
        completions = [each for each in self._completions if each is not None]
        is_last = len(completions) == len(self._completions)
        self.write(finished + self.answer.end(completions) if is_last else finished)
        if is_last:
            self._end()

    def fail(self, error: RequestError) -> None:
        """A choice has failed, and with it the answer."""
        if self.has_ended:
            return
        if self._transport is None:
            self.refusal = error
        else:
            self.write(self.answer.fail(error))
        self._end()

    def buffered_bytes(self) -> int:
        if self._transport is None:
            return sum(map(len, self._held))
        return unread_bytes(self._transport)

    def write(self, data: bytes) -> None:
        """Whole events, or none: a text may be held back. Nothing follows the end."""
        if not data:
            return
        transport = self._transport
        self._written_ns = self._clock()
        if transport is None:
            self._held.append(data)
            self._news.set()
        elif not self.has_ended:
            self._send(transport, data)

    def _send(self, transport: asyncio.Transport, data: bytes) -> None:
        if not transport.is_closing():
            transport.write(http_chunk(data) if self._is_chunked else data)

    def _end(self) -> None:
        self.has_ended = True
        self._news.set()


class SseChoice(LiveRequest):
    """One choice of a stream."""

    def __init__(self, intake: Intake, request_id: int, stream: SseStream, index: int) -> None:
        super().__init__(intake, request_id)
        self._stream = stream
        self._index = index
        self._shape: StreamShape = stream.answer.choices[index]

    def write_delta(self, text: str, num_tokens: int) -> None:
        self._stream.write(self._shape.delta(text, self.take_logprobs()))

    def write_done(self, completion: Completion) -> None:
        self._stream.done(self._index, completion)

    def write_error(self, error: RequestError) -> None:
        self._stream.fail(error)

    def buffered_bytes(self) -> int:
        return self._stream.buffered_bytes()
