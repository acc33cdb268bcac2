"""The sockets of the websocket door, and their requests.

The streamer writes frames straight to the transport. That is sound beside aiohttp's own writer (pings, pongs,
close) because both hand over whole frames in one write, compression is off, so frames share no state, and
nothing is written once `ws.closed` says that a close frame is out.
"""

import asyncio
import secrets
from collections.abc import Callable

from aiohttp import web

from pipeline.core.framing import text_frame
from pipeline.core.keys import Principal
from pipeline.core.wire import Answered, Replay, Wanted
from pipeline.errors import RequestError
from pipeline.messages import Completion
from pipeline.stages.ingress.intake import Intake, LiveRequest
from pipeline.stages.ingress.patience import unread_bytes


class Socket:
    """One connection."""

    def __init__(self, ws: web.WebSocketResponse, transport: asyncio.Transport) -> None:
        self.ws = ws
        self.transport = transport

    @property
    def has_version(self) -> bool:
        """Its client has named the protocol's version, and so been told the session."""
        return self.ws.ws_protocol is not None

    def write(self, payload: bytes) -> None:
        """Never waits; drops what a closed socket cannot take."""
        if not (self.ws.closed or self.transport.is_closing()):
            self.transport.write(text_frame(payload))

    def buffered_bytes(self) -> int:
        return unread_bytes(self.transport)


class Session:
    """A client's requests by its ids. They outlive its socket where they can be resumed.

    Args:
        principal: who opened the socket; nobody else may resume.
    """

    def __init__(self, socket: Socket, principal: Principal) -> None:
        self.token = secrets.token_urlsafe(24)
        """Names it in a `resume`; whoever has it reads the answers."""
        self.principal = principal
        self.socket: Socket | None = socket
        """None: it is lost."""
        self.requests: dict[str, SocketRequest] = {}
        """The live ones, and of those that can be resumed ended ones too, until their end is acknowledged."""

    @property
    def is_over(self) -> bool:
        return self.socket is None and not self.requests

    def write(self, payload: bytes) -> None:
        if self.socket is not None:
            self.socket.write(payload)

    def buffered_bytes(self) -> int:
        return 0 if self.socket is None else self.socket.buffered_bytes()

    def kept_bytes(self) -> int:
        """Of frames that are not acknowledged, of all its requests."""
        return sum(each.replay.num_bytes for each in self.requests.values() if each.replay is not None)


class SocketRequest(LiveRequest):
    """One request of a socket.

    Args:
        on_end: is called when it has ended, and when its client has acknowledged all of it.
    """

    def __init__(
        self,
        intake: Intake,
        request_id: int,
        session: Session,
        client_id: str,
        wanted: Wanted,
        on_end: Callable[["SocketRequest"], None],
    ) -> None:
        super().__init__(intake, request_id)
        self.client_id = client_id
        self.session = session
        self.frames = Answered(client_id, wanted)
        self.replay = Replay() if wanted.is_resumable else None
        self.has_ended = False
        self._on_end = on_end

    def write_delta(self, text: str, num_tokens: int) -> None:
        self._write(self.frames.delta(text, num_tokens, self.take_logprobs(), self._index))

    def write_done(self, completion: Completion) -> None:
        self._write(self.frames.rest(self._index))
        self._write(self.frames.done(completion, self._index))
        self._end_here()

    def write_error(self, error: RequestError) -> None:
        self._write(self.frames.error(error, self._index))
        self._end_here()

    def buffered_bytes(self) -> int:
        unread = self.session.buffered_bytes()
        return unread if self.replay is None else max(unread, self.session.kept_bytes())

    def is_away(self) -> bool:
        return self.session.socket is None

    def acknowledge(self, index: int) -> None:
        """Raises RequestError for a frame that its client cannot have."""
        if self.replay is None:
            raise RequestError(
                "This request has no indices: it was not sent with 'resumable'.",
                param="id",
                code="not_resumable",
            )
        self.replay.acknowledge(index)
        if self.has_ended and self.replay.is_empty:
            self._on_end(self)

    @property
    def _index(self) -> int:
        return 0 if self.replay is None else self.replay.next_index

    def _write(self, frame: bytes) -> None:
        if not frame:
            return
        if self.replay is not None:
            self.replay.keep(frame)
        self.session.write(frame)

    def _end_here(self) -> None:
        self.has_ended = True
        self._on_end(self)
