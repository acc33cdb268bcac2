"""The websocket door: GET /v1/stream, many requests on one socket (docs/websocket.md).

The socket's handler is its reader; the streamer writes (stages.ingress.sockets).
"""

import asyncio
import secrets
from collections.abc import Callable

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from pipeline.core.wire import (
    Frame,
    Limits,
    check_bare,
    error_frame,
    hello_frame,
    parse_ack,
    parse_frame,
    parse_grant,
    parse_resume,
    pong_frame,
    take_traceparent,
    wanted_of,
)
from pipeline.core.wire.fields import wrong
from pipeline.errors import RequestError
from pipeline.grammar.door import GrammarDoor
from pipeline.stages.ingress import subprotocol
from pipeline.stages.ingress.authentication import PRINCIPAL
from pipeline.stages.ingress.cors import Cors
from pipeline.stages.ingress.intake import DRAINING, Arrival, Intake
from pipeline.stages.ingress.options import IngressOptions
from pipeline.stages.ingress.patience import until_read
from pipeline.stages.ingress.replies import traceparent_of
from pipeline.stages.ingress.sessions import Sessions
from pipeline.stages.ingress.sockets import Session, Socket, SocketRequest

_MAX_UNREAD_BYTES = 1 << 20
"""Replies that a client lets pile up before its next frame is read; the streamer's own bound is lower."""


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
        self.sessions = Sessions(intake, options.resume_s, options.max_lost_sockets)
        self._on: dict[object, Callable[[Session, Frame], None]] = {
            "cancel": self._cancel,
            "grant": self._grant,
            "ack": self._acknowledge,
            "resume": self._resume,
            "ping": self._ping,
        }

    async def serve(self, request: web.Request) -> web.StreamResponse:
        subprotocol.check_offer(request)
        ws = web.WebSocketResponse(
            timeout=self._options.write_timeout_s,
            heartbeat=self._options.ping_interval_s,
            protocols=(subprotocol.PROTOCOL,),
            compress=False,
            max_msg_size=self._options.max_frame_bytes,
        )
        if not ws.can_prepare(request):
            raise RequestError("This path speaks websocket (RFC 6455).", status=426, code="upgrade_required")
        self._cors.check_socket(request)
        if self._intake.is_draining:
            return await subprotocol.refuse(request, DRAINING)
        await ws.prepare(request)
        if request.transport is not None:
            await self._read(Socket(ws, request.transport), request)
        return ws

    async def close_all(self, code: WSCloseCode, timeout_s: float) -> None:
        """Say goodbye on every socket."""
        self.sessions.stop()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(socket.ws.close(code=code) for socket in list(self.sockets)))
        except TimeoutError:
            for socket in self.sockets:
                socket.transport.abort()

    async def _read(self, socket: Socket, request: web.Request) -> None:
        session = self.sessions.open(socket, request[PRINCIPAL])
        traceparent = traceparent_of(request)
        self.sockets.add(socket)
        if socket.has_version:
            socket.write(hello_frame(session.token, self._limits.model, self._told_limits()))
        try:
            async for message in socket.ws:
                await self._take(session, message, traceparent)
                await until_read(socket.transport, _MAX_UNREAD_BYTES, self._options.write_timeout_s)
        finally:
            self.sockets.discard(socket)
            is_goodbye = socket.ws.close_code == WSCloseCode.OK or self._intake.is_draining
            self.sessions.close(session, is_lost=not is_goodbye)

    def _told_limits(self) -> dict[str, object]:
        options = self._options
        return {
            "max_frame_bytes": options.max_frame_bytes,
            "max_requests": options.max_requests_per_socket,
            "max_model_len": self._limits.max_model_len,
            "ping_interval_s": options.ping_interval_s,
            "resume_s": options.resume_s,
        }

    async def _take(self, session: Session, message: WSMessage, traceparent: str | None) -> None:
        """One frame; whatever is wrong with it is answered, and costs the socket nothing."""
        arrived_ns = self._clock()
        client_id = None
        try:
            frame = parse_frame(_text(message))
            client_id = frame.id
            if frame.type == "generate":
                traceparent = take_traceparent(frame) or traceparent
                await self._generate(session, frame, Arrival(arrived_ns, session.principal, traceparent))
            else:
                self._handler(frame)(session, frame)
        except RequestError as error:
            session.write(error_frame(client_id, error))

    def _handler(self, frame: Frame) -> Callable[[Session, Frame], None]:
        handler = self._on.get(frame.type) if isinstance(frame.type, str) else None
        if handler is None:
            expected = ", ".join(f'"{name}"' for name in ("generate", *self._on))
            raise wrong("type", f"one of {expected}", frame.type, code="unknown_type")
        return handler

    async def _generate(self, session: Session, frame: Frame, arrival: Arrival) -> None:
        self._check_room(session, frame.id)
        parsed = wanted_of(frame.fields, self._limits, secrets.randbits(63))
        wanted = parsed.under(session.principal.tenant, session.principal.max_priority)
        if wanted.is_resumable:
            self._check_resumable(session)
        await self._grammars.check(wanted)

        def build(request_id: int) -> SocketRequest:
            return SocketRequest(self._intake, request_id, session, frame.id, wanted, self.sessions.ended)

        live = self._intake.submit(wanted, arrival, build)
        session.requests[frame.id] = live
        session.write(live.frames.accepted(live.trace_parent))

    def _check_resumable(self, session: Session) -> None:
        if not self._options.resume_s:
            raise RequestError(
                "This server resumes nothing: stages.ingress.options.resume_s is 0.",
                param="resumable",
                code="resume_off",
            )
        if session.socket is None or not session.socket.has_version:
            raise RequestError(
                f"'resumable' needs a socket that was opened with the subprotocol {subprotocol.PROTOCOL!r}.",
                param="resumable",
                code="resume_off",
            )

    def _check_room(self, session: Session, client_id: str) -> None:
        if client_id in session.requests:
            raise RequestError(
                "A request with this 'id' is live on this socket, or its end is not acknowledged.",
                param="id",
                code="duplicate_id",
            )
        if len(session.requests) >= self._options.max_requests_per_socket:
            raise RequestError(
                f"This socket has {len(session.requests)} live requests, the most allowed.",
                status=429,
                code="too_many_requests",
            )

    def _cancel(self, session: Session, frame: Frame) -> None:
        """A cancel may cross the `done` of its request: for an id that is not live there is nothing to do.
        So it is with grants and acknowledgements.
        """
        check_bare(frame)
        if live := session.requests.get(frame.id):
            self._intake.cancel(live)

    def _grant(self, session: Session, frame: Frame) -> None:
        num_tokens = parse_grant(frame)
        if live := session.requests.get(frame.id):
            self._intake.grant(live, num_tokens)

    def _acknowledge(self, session: Session, frame: Frame) -> None:
        index = parse_ack(frame)
        if live := session.requests.get(frame.id):
            live.acknowledge(index)

    def _resume(self, session: Session, frame: Frame) -> None:
        asked = parse_resume(frame)
        if asked.session != session.token:
            self._check_room(session, frame.id)
        self.sessions.resume(asked, frame.id, session)

    def _ping(self, session: Session, frame: Frame) -> None:
        check_bare(frame)
        session.write(pong_frame(frame.id))


def _text(message: WSMessage) -> str:
    if message.type is not WSMsgType.TEXT:
        raise RequestError("Frames must be JSON in text frames.", code="not_text")
    return str(message.data)
