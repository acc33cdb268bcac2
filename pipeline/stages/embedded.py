"""Embedded: takes ingress's place in a program that runs the pipeline itself. No sockets, no HTTP.

What a door refuses waits here: there is one caller to each request, and he is held back until it is in. It is
called by `pipeline.embedded.Engine`, on the pipeline's loop.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Never

import msgspec

from pipeline.checkpoint.card import ModelCard
from pipeline.core.gate import Gate
from pipeline.core.wire import SERVER_ERROR, Wanted
from pipeline.errors import InboxClosed, RequestError
from pipeline.grammar.door import GrammarDoor
from pipeline.messages import Cancel, Completion, FinishReason, GenerateRequest, Open
from pipeline.runtime.stage import Stage, StageContext
from pipeline.runtime.trace import Point
from pipeline.telemetry import Telemetry

CLOSED = RequestError("The engine has been closed.", status=503, code="closed")

Count = Annotated[int, msgspec.Meta(ge=1)]


class EmbeddedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_live_requests: Count = 1024
    """In the pipeline at a time; further ones wait until one has ended."""
    max_model_len: Count | None = None
    """Prompt and output together, tokens. None: the model's own length."""
    grammar_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 2.0
    """A grammar (response_format, structured_outputs) that takes longer to compile is refused."""


class Reply:
    """One request's answer: a ClientSink, read by one caller.

    A caller who does not read is waited for: his request is paused while much is unread, and never cut off.
    """

    def __init__(self, request_id: int, stage: "Embedded") -> None:
        self.request_id = request_id
        self.num_output_tokens = 0
        self.completion: Completion | None = None
        """Once it has ended well."""
        self._stage = stage
        self._is_read = True
        self._unread: deque[str] = deque()
        self._num_unread_bytes = 0
        self._error: RequestError | None = None
        self._changed = asyncio.Event()

    async def read(self) -> str:
        """The next piece of its text, never empty; empty at its end. Raises RequestError."""
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self.completion is not None:
                return ""
            self._changed.clear()
            await self._changed.wait()
        text = self._unread.popleft()
        self._num_unread_bytes -= len(text.encode())
        return text

    def leave(self) -> None:
        """Nobody reads any more: what is still to come is cancelled. No-op once it has ended."""
        self._is_read = False
        self._unread.clear()
        self._num_unread_bytes = 0
        self._stage.cancel(self)

    def delta(self, text: str, num_tokens: int) -> None:
        self.num_output_tokens += num_tokens
        if self._is_read and text:
            self._unread.append(text)
            self._num_unread_bytes += len(text.encode())
            self._changed.set()

    def done(self, completion: Completion) -> None:
        self.completion = completion
        self._end()

    def error(self, error: RequestError) -> None:
        self._error = error
        self._end()

    def buffered_bytes(self) -> int:
        return self._num_unread_bytes

    def is_away(self) -> bool:
        return True

    def _end(self) -> None:
        self._stage.ended(self)
        self._changed.set()


class Embedded(Stage[Never, EmbeddedOptions]):
    """Single loop. Ids have no holes: one is used only when its request got in."""

    Options = EmbeddedOptions
    takes = ()
    gives = (GenerateRequest, Open, Cancel)

    def __init__(self, ctx: StageContext, options: EmbeddedOptions) -> None:
        super().__init__(ctx, options)
        self.live: dict[int, Reply] = {}
        self._requests = ctx.outlet(GenerateRequest)
        self._gate = ctx.resource(Gate)
        self._telemetry = ctx.resource(Telemetry)
        self._grammars = GrammarDoor(ctx.resource(ModelCard), options.grammar_timeout_s)
        self._trying = asyncio.Lock()
        """A grammar is tried: others wait their turn here."""
        self._next_id = 0
        self.is_closed = False
        self._changed = asyncio.Event()
        """There may be room, or never again."""

    @staticmethod
    def tenant_of(authorization: str | None) -> str:
        """See Ingress: there are no keys."""
        return ""

    async def submit(self, wanted: Wanted) -> Reply:
        """Wait for room, then send the request on its way. Raises RequestError: 503 once this is closed."""
        arrived_ns = self.ctx.clock()
        if wanted.sampling.grammar is not None:
            async with self._trying:
                await self._grammars.check(wanted)
        while True:
            if self.is_closed:
                raise CLOSED
            self._changed.clear()
            if len(self.live) < self.options.max_live_requests:
                if (reply := self._offer(wanted, arrived_ns)) is not None:
                    return reply
                self._requests.when_room(self._changed.set)
            await self._changed.wait()

    def cancel(self, reply: Reply) -> None:
        """No-op for one that has ended; else its terminal row still comes."""
        if reply.request_id in self.live:
            self.ctx.outlet(Cancel).post(Cancel(reply.request_id, FinishReason.CANCELLED))

    def ended(self, reply: Reply) -> None:
        """Forget it. No-op for one that had ended before."""
        if self.live.pop(reply.request_id, None) is not None:
            self._gate.leave(reply.request_id, reply.num_output_tokens)
            self._changed.set()

    def close(self) -> None:
        """Take no more, and give up what is live: who reads it gets an error."""
        self._end_all(CLOSED)

    async def handle(self, batch: Sequence[Never]) -> None:
        """Never called: nothing is sent here."""

    async def stop(self) -> None:
        """Without close() before, the pipeline has crashed."""
        self._end_all(SERVER_ERROR)
        await self._grammars.stop()

    def gauges(self) -> Mapping[str, float]:
        return {"live_requests": len(self.live)}

    def _offer(self, wanted: Wanted, arrived_ns: int) -> Reply | None:
        """None: there is no room."""
        request_id = self._next_id
        request = GenerateRequest(
            request_id,
            wanted.prompt,
            wanted.chat,
            wanted.sampling,
            arrived_ns,
            self.ctx.clock(),
            wanted.terms,
        )
        try:
            if not self._requests.offer(request):
                return None
        except InboxClosed:
            raise CLOSED from None
        self._next_id += 1
        reply = self.live[request_id] = Reply(request_id, self)
        self._gate.enter(request)
        self._telemetry.received()
        self.ctx.outlet(Open).post(self._opened(wanted, reply, arrived_ns))  # same tick: before any answer
        self.ctx.trace.record(Point.ARRIVED, self.ctx.name, request_id, at_ns=arrived_ns)
        return reply

    def _opened(self, wanted: Wanted, reply: Reply, arrived_ns: int) -> Open:
        span = self._telemetry.trace_sampler.span(None)
        return Open(
            reply.request_id,
            reply,
            arrived_ns,
            trace_parent=str(span.own) if span is not None else "",
            is_chat=wanted.chat is not None,
            flush_tokens=wanted.flush_tokens,
            flush_ms=wanted.flush_ms,
        )

    def _end_all(self, error: RequestError) -> None:
        self.is_closed = True
        self._changed.set()
        for reply in list(self.live.values()):
            reply.leave()
            reply.error(error)
