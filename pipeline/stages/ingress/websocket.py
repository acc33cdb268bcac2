"""The websocket door: GET /v1/stream, many requests on one socket.

The socket's handler is its reader; the streamer writes frames straight to the transport. That is sound beside
aiohttp's own writer (pings, pongs, close) because both hand over whole frames in one write, compression is
off, so frames share no state, and nothing is written once `ws.closed` says that a close frame is out.
"""

import asyncio
import secrets
from collections.abc import Callable

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from pipeline.core.framing import text_frame
from pipeline.core.wire import (
    Answered,
    Frame,
    Limits,
    error_frame,
    parse_frame,
    take_traceparent,
    wanted_of,
)
from pipeline.core.wire.fields import wrong
from pipeline.errors import RequestError
from pipeline.messages import Completion
from pipeline.stages.ingress.authentication import PRINCIPAL
from pipeline.stages.ingress.cors import Cors
from pipeline.stages.ingress.grammars import GrammarDoor
from pipeline.stages.ingress.intake import DRAINING, Arrival, Intake, LiveRequest
from pipeline.stages.ingress.options import IngressOptions
from pipeline.stages.ingress.patience import unread_bytes, until_read
from pipeline.stages.ingress.replies import traceparent_of

_MAX_UNREAD_BYTES = 1 << 20
"""Replies that a client lets pile up before its next frame is read; the streamer's own bound is lower."""


class SocketRequest(LiveRequest):
    """One request of a socket."""

    def __init__(
        self, intake: Intake, request_id: int, socket: "Socket", client_id: str, *, timings: bool
    ) -> None:
        super().__init__(intake, request_id)
        self._socket = socket
        self._client_id = client_id
        self._frames = Answered(client_id, timings=timings)

    def accept(self) -> None:
        self._socket.write(self._frames.accepted(self.trace_parent))

    def write_delta(self, text: str, num_tokens: int) -> None:
        self._socket.write(self._frames.delta(text, num_tokens, self.take_logprobs()))

    def write_done(self, completion: Completion) -> None:
        self._end_with(self._frames.done(completion))

    def write_error(self, error: RequestError) -> None:
        self._end_with(self._frames.error(error))

    def buffered_bytes(self) -> int:
        return self._socket.buffered_bytes()

    def _end_with(self, frame: bytes) -> None:
        self._socket.write(frame)
        del self._socket.live[self._client_id]


class Socket:
    """One connection: its transport and its live requests by the client's ids."""

    def __init__(
        self, ws: web.WebSocketResponse, transport: asyncio.Transport, handshake: web.Request
    ) -> None:
        self.ws = ws
        self.transport = transport
        self.traceparent = traceparent_of(handshake)
        """For requests that bring none of their own."""
        self.principal = handshake[PRINCIPAL]
        self.live: dict[str, SocketRequest] = {}

    def write(self, payload: bytes) -> None:
        """Never waits; drops what a closed socket cannot take."""
        if not (self.ws.closed or self.transport.is_closing()):
            self.transport.write(text_frame(payload))

    def buffered_bytes(self) -> int:
        return unread_bytes(self.transport)


class WebsocketDoor:
    """The handler, and all open sockets."""

    def __init__(
        self,
        intake: Intake,
        grammars: GrammarDoor,
        limits: Limits,
        options: IngressOptions,
        cors: Cors,
        clock: Callable[[], int],
    ) -> None:
        self._intake = intake
        self._grammars = grammars
        self._limits = limits
        self._options = options
        self._cors = cors
        self._clock = clock
        self.sockets: set[Socket] = set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        ws = web.WebSocketResponse(
            timeout=self._options.write_timeout_s,
            heartbeat=self._options.ping_interval_s,
            compress=False,
            max_msg_size=self._options.max_frame_bytes,
        )
        if not ws.can_prepare(request):
            raise RequestError("This path speaks websocket (RFC 6455).", status=426, code="upgrade_required")
        self._cors.check_socket(request)
        if self._intake.is_draining:
            raise DRAINING
        await ws.prepare(request)
        transport = request.transport
        if transport is None:
            return ws
        socket = Socket(ws, transport, request)
        self.sockets.add(socket)
        try:
            async for message in ws:
                await self._take(socket, message)
                await until_read(transport, _MAX_UNREAD_BYTES, self._options.write_timeout_s)
        finally:
            self.sockets.discard(socket)
            for live in list(socket.live.values()):
                self._intake.leave(live)
        return ws

    async def close_all(self, timeout_s: float) -> None:
        """Say goodbye (1001) on every socket."""
        try:
            async with asyncio.timeout(timeout_s):
                closes = (socket.ws.close(code=WSCloseCode.GOING_AWAY) for socket in list(self.sockets))
                await asyncio.gather(*closes)
        except TimeoutError:
            for socket in self.sockets:
                socket.transport.abort()

    async def _take(self, socket: Socket, message: WSMessage) -> None:
        """One frame; whatever is wrong with it is answered, and costs the socket nothing."""
        arrived_ns = self._clock()
        client_id = None
        try:
            frame = parse_frame(_text(message))
            client_id = frame.id
            await self._obey(socket, frame, arrived_ns)
        except RequestError as error:
            socket.write(error_frame(client_id, error))

    async def _obey(self, socket: Socket, frame: Frame, arrived_ns: int) -> None:
        if frame.type == "generate":
            await self._generate(socket, frame, arrived_ns)
        elif frame.type == "cancel":
            self._cancel(socket, frame)
        else:
            raise wrong("type", '"generate" or "cancel"', frame.type, code="unknown_type")

    async def _generate(self, socket: Socket, frame: Frame, arrived_ns: int) -> None:
        if frame.id in socket.live:
            raise RequestError(
                "A request with this 'id' is live on this socket.", param="id", code="duplicate_id"
            )
        if len(socket.live) >= self._options.max_requests_per_socket:
            raise RequestError(
                f"This socket has {len(socket.live)} live requests, the most allowed.",
                status=429,
                code="too_many_requests",
            )
        traceparent = take_traceparent(frame) or socket.traceparent
        principal = socket.principal
        parsed = wanted_of(frame.fields, self._limits, secrets.randbits(63))
        wanted = parsed.under(principal.tenant, principal.max_priority)
        await self._grammars.check(wanted)

        def build(request_id: int) -> SocketRequest:
            return SocketRequest(self._intake, request_id, socket, frame.id, timings=wanted.timings)

        live = self._intake.submit(wanted, Arrival(arrived_ns, principal, traceparent), build)
        socket.live[frame.id] = live
        live.accept()

    def _cancel(self, socket: Socket, frame: Frame) -> None:
        """A cancel may cross the `done` of its request: for an id that is not live there is nothing to do."""
        live = socket.live.get(frame.id)
        if live is not None:
            self._intake.cancel(live)


def _text(message: WSMessage) -> str:
    if message.type is not WSMsgType.TEXT:
        raise RequestError("Frames must be JSON in text frames.", code="not_text")
    return str(message.data)
