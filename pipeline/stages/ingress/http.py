"""The HTTP door: /v1/completions and /v1/chat/completions, whole or as server-sent events."""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Literal

from aiohttp import web

from pipeline.core.framing import http_chunk
from pipeline.core.wire import (
    ChatAnswer,
    CompletionAnswer,
    Limits,
    StreamShape,
    Wanted,
    error_event,
    parse_chat,
    parse_completion,
)
from pipeline.core.wire.answers import PING
from pipeline.errors import RequestError
from pipeline.messages import Completion, TokenLogprob
from pipeline.stages.ingress.authentication import PRINCIPAL
from pipeline.stages.ingress.intake import Intake, LiveRequest
from pipeline.stages.ingress.options import IngressOptions
from pipeline.stages.ingress.patience import lose_silent_peer
from pipeline.stages.ingress.replies import ANSWERED_TRACEPARENT, TRACEPARENT, json_bytes, traceparent_of

Answer = CompletionAnswer | ChatAnswer
Parse = Callable[[bytes, Limits, int], Wanted]

_SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class WholeRequest(LiveRequest):
    """Gathers the text of an answer that is not streamed."""

    def __init__(self, intake: Intake, request_id: int) -> None:
        super().__init__(intake, request_id)
        self._texts: list[str] = []
        self.all_logprobs: list[TokenLogprob] = []
        """Of the whole text, where it asked."""
        self._ended: asyncio.Future[Completion | RequestError] = asyncio.get_running_loop().create_future()

    async def result(self) -> tuple[str, Completion]:
        """Text and ending. Raises the RequestError that the pipeline answered with."""
        ended = await self._ended
        if isinstance(ended, RequestError):
            raise ended
        return "".join(self._texts), ended

    def write_delta(self, text: str, num_tokens: int) -> None:
        self._texts.append(text)
        self.all_logprobs += self.take_logprobs()

    def write_done(self, completion: Completion) -> None:
        self._resolve(completion)

    def write_error(self, error: RequestError) -> None:
        self._resolve(error)

    def _resolve(self, value: Completion | RequestError) -> None:
        if not self._ended.done():  # done already: its handler was cancelled in this very tick
            self._ended.set_result(value)


class SseRequest(LiveRequest):
    """Writes a stream's events straight to the transport, from the streamer's task.

    A handler task that is woken for each event would cost 15 us more. It is sound beside aiohttp's own writer
    because that one writes the head at once in `prepare()` (StreamResponse, unlike Response, does not hold it
    back), then nothing before the handler calls `write_eof()`, which only adds the last chunk; and because
    every write here is whole chunks. Before `open()` events are held, so that a request which is refused
    first gets a real status.
    """

    def __init__(self, intake: Intake, request_id: int, shape: StreamShape, clock: Callable[[], int]) -> None:
        super().__init__(intake, request_id)
        self._shape = shape
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
            self._write(held)
        if not self.has_ended:
            self._news.clear()

    def silence_s(self) -> float:
        return (self._clock() - self._written_ns) / 1e9

    def ping(self, mode: Literal["comment", "chunk"]) -> None:
        self._write(PING if mode == "comment" else self._shape.delta(""))

    def write_delta(self, text: str, num_tokens: int) -> None:
        self._write(self._shape.delta(text, self.take_logprobs()))

    def write_done(self, completion: Completion) -> None:
        self._write(self._shape.last(completion))
        self._finish()

    def write_error(self, error: RequestError) -> None:
        if self._transport is None:
            self.refusal = error
        else:
            self._write(error_event(error))
        self._finish()

    def buffered_bytes(self) -> int:
        if self._transport is None:
            return sum(map(len, self._held))
        return self._transport.get_write_buffer_size()

    def _finish(self) -> None:
        self.has_ended = True
        self._news.set()

    def _write(self, data: bytes) -> None:
        transport = self._transport
        self._written_ns = self._clock()
        if transport is None:
            self._held.append(data)
            self._news.set()
        elif not transport.is_closing():
            transport.write(http_chunk(data) if self._is_chunked else data)


class HttpDoor:
    """Handlers of the two endpoints."""

    def __init__(
        self, intake: Intake, limits: Limits, options: IngressOptions, clock: Callable[[], int]
    ) -> None:
        self._intake = intake
        self._limits = limits
        self._options = options
        self._clock = clock
        self._instance = secrets.token_hex(6)
        """In every answer's id, so that ids of two runs of the server differ."""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, parse_completion, CompletionAnswer)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, parse_chat, ChatAnswer)

    async def _generate(self, request: web.Request, parse: Parse, shape: type[Answer]) -> web.StreamResponse:
        arrived_ns = self._clock()
        body = await self._body(request)
        principal = request[PRINCIPAL]
        parsed = parse(body, self._limits, secrets.randbits(63))
        wanted = parsed.under(principal.tenant, principal.max_priority)
        if wanted.stream:
            return await self._stream(request, wanted, shape, arrived_ns)
        return await self._whole(request, wanted, shape, arrived_ns)

    async def _whole(
        self, request: web.Request, wanted: Wanted, shape: type[Answer], arrived_ns: int
    ) -> web.Response:
        def build(request_id: int) -> WholeRequest:
            return WholeRequest(self._intake, request_id)

        live = self._intake.submit(wanted, arrived_ns, build, request[PRINCIPAL], traceparent_of(request))
        request[ANSWERED_TRACEPARENT] = live.trace_parent
        try:
            text, completion = await live.result()
        finally:
            self._intake.leave(live)
        answer = self._answer(shape, live.request_id, wanted)
        return json_bytes(answer.whole(text, completion, live.all_logprobs))

    async def _stream(
        self, request: web.Request, wanted: Wanted, shape: type[Answer], arrived_ns: int
    ) -> web.StreamResponse:
        def build(request_id: int) -> SseRequest:
            return SseRequest(self._intake, request_id, self._answer(shape, request_id, wanted), self._clock)

        live = self._intake.submit(wanted, arrived_ns, build, request[PRINCIPAL], traceparent_of(request))
        request[ANSWERED_TRACEPARENT] = live.trace_parent
        try:
            await live.news(self._options.ping_interval_s)
            if live.refusal is not None:
                raise live.refusal
            response = await self._head(request, live)
            await self._until_ended(live)
        finally:
            self._intake.leave(live)
        return response

    async def _head(self, request: web.Request, live: SseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=_SSE_HEADERS)
        if live.trace_parent:
            response.headers[TRACEPARENT] = live.trace_parent
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left before its answer began")
        lose_silent_peer(transport, 2 * self._options.ping_interval_s)
        # HTTP/1.0 knows no chunks: there the body ends with the connection
        live.open(transport, is_chunked="Transfer-Encoding" in response.headers)
        return response

    async def _until_ended(self, live: SseRequest) -> None:
        mode, interval_s = self._options.ping, self._options.ping_interval_s
        while not live.has_ended:
            if mode == "off":
                await live.news(None)
                continue
            if live.silence_s() >= interval_s:
                live.ping(mode)
            await live.news(interval_s - live.silence_s())

    def _answer(self, shape: type[Answer], request_id: int, wanted: Wanted) -> Answer:
        key = f"{self._instance}-{request_id}"
        return shape(key, int(time.time()), self._limits.model, wanted)

    async def _body(self, request: web.Request) -> bytes:
        """Raises RequestError 408, 413 or 415."""
        limit, timeout_s = self._options.max_body_bytes, self._options.body_timeout_s
        too_large = RequestError(f"The body is over {limit} bytes.", status=413, code="body_too_large")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise RequestError("A compressed body is not accepted.", status=415, code="unsupported_encoding")
        if (request.content_length or 0) > limit:
            raise too_large
        try:
            async with asyncio.timeout(timeout_s):
                return await request.read()
        except TimeoutError:
            message = f"The body did not arrive within {timeout_s:g} s."
            raise RequestError(message, status=408, code="body_timeout") from None
        except web.HTTPRequestEntityTooLarge:
            raise too_large from None
