"""The HTTP door: /v1/completions, /v1/chat/completions and /v1/responses, whole or as server-sent events."""

import asyncio
import secrets
import time
from collections.abc import Callable

from aiohttp import web

from pipeline.core.wire import (
    AnswerShape,
    ChatAnswer,
    CompletionAnswer,
    Limits,
    ResponseAnswer,
    Result,
    Wanted,
    parse_chat,
    parse_completion,
    parse_response,
)
from pipeline.errors import RequestError
from pipeline.grammar.door import GrammarDoor
from pipeline.messages import Completion, TokenLogprob
from pipeline.stages.ingress.authentication import PRINCIPAL
from pipeline.stages.ingress.body import read_body
from pipeline.stages.ingress.intake import Arrival, Intake, LiveRequest
from pipeline.stages.ingress.options import IngressOptions
from pipeline.stages.ingress.patience import lose_silent_peer
from pipeline.stages.ingress.replies import ANSWERED_TRACEPARENT, TRACEPARENT, json_bytes, traceparent_of
from pipeline.stages.ingress.sse import SseChoice, SseStream

Parse = Callable[[bytes, Limits, int], list[Wanted]]
NewAnswer = Callable[[str, int, str, list[Wanted]], AnswerShape]

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
        self._logprobs: list[TokenLogprob] = []
        """Of the whole text, where it asked."""
        self._ended: asyncio.Future[Completion | RequestError] = asyncio.get_running_loop().create_future()

    async def result(self) -> Result:
        """Raises the RequestError that the pipeline answered with."""
        ended = await self._ended
        if isinstance(ended, RequestError):
            raise ended
        return Result("".join(self._texts), ended, self._logprobs)

    def write_delta(self, text: str, num_tokens: int) -> None:
        self._texts.append(text)
        self._logprobs += self.take_logprobs()

    def write_done(self, completion: Completion) -> None:
        self._resolve(completion)

    def write_error(self, error: RequestError) -> None:
        self._resolve(error)

    def _resolve(self, value: Completion | RequestError) -> None:
        if not self._ended.done():  # done already: its handler was cancelled in this very tick
            self._ended.set_result(value)


class HttpDoor:
    """Handlers of the endpoints."""

    def __init__(
        self,
        intake: Intake,
        grammars: GrammarDoor,
        limits: Limits,
        options: IngressOptions,
        clock: Callable[[], int],
    ) -> None:
        self._intake = intake
        self._grammars = grammars
        self._limits = limits
        self._options = options
        self._clock = clock
        self.instance = secrets.token_hex(6)
        """In every answer's id, so that ids of two runs of the server differ."""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, parse_completion, CompletionAnswer)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, parse_chat, ChatAnswer)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, parse_response, ResponseAnswer)

    async def _generate(self, request: web.Request, parse: Parse, kind: NewAnswer) -> web.StreamResponse:
        arrived_ns = self._clock()
        body = await read_body(request, self._options)
        principal = request[PRINCIPAL]
        parsed = parse(body, self._limits, secrets.randbits(63))
        wanted = [each.under(principal.tenant, principal.max_priority) for each in parsed]
        await self._grammars.check(wanted[0])
        arrival = Arrival(arrived_ns, principal, traceparent_of(request))
        respond = self._stream if wanted[0].stream else self._whole
        return await respond(request, wanted, kind, arrival)

    async def _whole(
        self, request: web.Request, wanted: list[Wanted], kind: NewAnswer, arrival: Arrival
    ) -> web.StreamResponse:
        answer = self._answer(kind, wanted)
        lives = self._intake.submit_all(
            wanted, arrival, lambda request_id, _: WholeRequest(self._intake, request_id)
        )
        request[ANSWERED_TRACEPARENT] = lives[0].trace_parent
        try:
            results = [await live.result() for live in lives]
        finally:
            for live in lives:
                self._intake.leave(live)
        return json_bytes(answer.whole(results))

    async def _stream(
        self, request: web.Request, wanted: list[Wanted], kind: NewAnswer, arrival: Arrival
    ) -> web.StreamResponse:
        stream = SseStream(self._answer(kind, wanted), self._clock)
        lives = self._intake.submit_all(
            wanted, arrival, lambda request_id, at: SseChoice(self._intake, request_id, stream, at)
        )
        request[ANSWERED_TRACEPARENT] = lives[0].trace_parent
        try:
            await stream.news(self._options.ping_interval_s)
            if stream.refusal is not None:
                raise stream.refusal
            response = await self._head(request, stream, lives[0].trace_parent)
            await self._until_ended(stream)
        finally:
            for live in lives:
                self._intake.leave(live)
        return response

    async def _head(self, request: web.Request, stream: SseStream, trace_parent: str) -> web.StreamResponse:
        response = web.StreamResponse(headers=_SSE_HEADERS)
        if trace_parent:
            response.headers[TRACEPARENT] = trace_parent
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left before its answer began")
        lose_silent_peer(transport, self._options.ping_interval_s)
        # HTTP/1.0 knows no chunks: there the body ends with the connection
        stream.open(transport, is_chunked="Transfer-Encoding" in response.headers)
        return response

    async def _until_ended(self, stream: SseStream) -> None:
        mode, interval_s = self._options.ping, self._options.ping_interval_s
        while not stream.has_ended:
            if mode == "off":
                await stream.news(None)
                continue
            if stream.silence_s() >= interval_s:
                stream.ping(mode)
            await stream.news(interval_s - stream.silence_s())

    def _answer(self, kind: NewAnswer, wanted: list[Wanted]) -> AnswerShape:
        key = f"{self.instance}-{self._intake.next_id}"
        return kind(key, int(time.time()), self._limits.model, wanted)
