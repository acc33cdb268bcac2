"""Sessions: what becomes of a socket's requests when it is lost, until its client is back or its time up."""

import asyncio

from pipeline.core.keys import Principal
from pipeline.core.wire import Resumption
from pipeline.errors import RequestError
from pipeline.stages.ingress.intake import Intake
from pipeline.stages.ingress.sockets import Session, Socket, SocketRequest

NOT_FOUND = RequestError(
    "There is no such request to resume: it never was, its end was acknowledged, or it was given up.",
    status=404,
    param="id",
    code="request_not_found",
)


class Sessions:
    """All that have a socket, or a request that may be resumed.

    Args:
        resume_s: how long a request waits for its client, from the loss of its socket or from its own end.
        max_lost: sessions without a socket.
    """

    def __init__(self, intake: Intake, resume_s: float, max_lost: int) -> None:
        self._intake = intake
        self._resume_s = resume_s
        self._max_lost = max_lost
        self._by_token: dict[str, Session] = {}
        self._lost: dict[Session, None] = {}
        """In the order of their loss."""
        self._expiries: dict[SocketRequest, asyncio.TimerHandle] = {}
        self._is_stopped = False

    @property
    def num_lost(self) -> int:
        return len(self._lost)

    def open(self, socket: Socket, principal: Principal) -> Session:
        session = Session(socket, principal)
        self._by_token[session.token] = session
        return session

    def close(self, session: Session, *, is_lost: bool) -> None:
        """Its socket is gone: with its client's goodbye, or `is_lost`, and its client may come back."""
        session.socket = None
        for request in list(session.requests.values()):
            if is_lost and request.replay is not None and not self._is_stopped:
                self._wait(request)
            else:
                self._give_up(request)
        if session.is_over:
            self._drop(session)
            return
        self._lost[session] = None
        if len(self._lost) > self._max_lost:
            self._give_up_all(next(iter(self._lost)))

    def resume(self, asked: Resumption, client_id: str, session: Session) -> None:
        """Go on with a request of another session, or of this one, at this one's socket.

        Raises RequestError. The request stays where it is then.
        """
        before = self._by_token.get(asked.session)
        if before is None or before.principal.tenant != session.principal.tenant:
            raise NOT_FOUND
        request = before.requests.get(client_id)
        if request is None or request.replay is None:
            raise NOT_FOUND
        frames = request.replay.after(asked.last_index)
        self._move(request, before, session)
        session.write(request.frames.resumed(asked.last_index))
        for frame in frames:
            session.write(frame)
        if request.has_ended:
            self.ended(request)
        else:
            self._stop_waiting(request)

    def ended(self, request: SocketRequest) -> None:
        """It has ended; it is kept while its client may not have all of it."""
        if request.replay is None or request.replay.is_empty:
            self._forget(request)
        else:
            self._wait(request)

    def stop(self) -> None:
        """Nobody can come back any more."""
        self._is_stopped = True
        for session in list(self._lost):
            self._give_up_all(session)
        for request in list(self._expiries):
            self._stop_waiting(request)

    def _move(self, request: SocketRequest, before: Session, session: Session) -> None:
        del before.requests[request.client_id]
        request.session = session
        session.requests[request.client_id] = request
        if before.is_over:
            self._drop(before)

    def _wait(self, request: SocketRequest) -> None:
        self._stop_waiting(request)
        loop = asyncio.get_running_loop()
        self._expiries[request] = loop.call_later(self._resume_s, self._give_up, request)

    def _stop_waiting(self, request: SocketRequest) -> None:
        if timer := self._expiries.pop(request, None):
            timer.cancel()

    def _give_up_all(self, session: Session) -> None:
        for request in list(session.requests.values()):
            self._give_up(request)

    def _give_up(self, request: SocketRequest) -> None:
        """Its client does not come back."""
        self._intake.leave(request)
        self._forget(request)

    def _forget(self, request: SocketRequest) -> None:
        self._stop_waiting(request)
        session = request.session
        if session.requests.get(request.client_id) is request:
            del session.requests[request.client_id]
        if session.is_over:
            self._drop(session)

    def _drop(self, session: Session) -> None:
        self._by_token.pop(session.token, None)
        self._lost.pop(session, None)
