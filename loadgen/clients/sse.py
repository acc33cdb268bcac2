"""`POST /v1/completions`, or `/v1/chat/completions`, with `stream`.

There is one connection per live request, kept open for the next one.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

from loadgen.behaviours import PLAIN, Conduct
from loadgen.clients.api import Prompt, body, describe
from loadgen.clients.dial import Dialer
from loadgen.clients.http1 import BodyReader, Head, HttpError, request, take_head
from loadgen.clients.manners import Manners
from loadgen.clients.sse_answer import SseAnswer, error_message
from loadgen.clients.sse_events import EventSplitter
from loadgen.record import Record

_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}
_KEEPALIVE_S = 3.0
"""Under the 5 s of common servers: a connection reused just as it is closed would be a false failure."""


class SseClient:
    """Client for any OpenAI-compatible server.

    Args:
        dialer: of the server.
        asks_timings: of each request where its time went.
        clock: seconds after the start of the run.
    """

    def __init__(
        self, dialer: Dialer, model: str | None, clock: Callable[[], float], *, asks_timings: bool = False
    ) -> None:
        self._dialer = dialer
        self._model = model
        self._clock = clock
        self._more = {"stream": True, "stream_options": {"include_usage": True}}
        if asks_timings:
            self._more["timings"] = True
        self._idle: list[_Connection] = []

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()

    async def generate(
        self, prompt: Prompt, max_tokens: int, record: Record, conduct: Conduct = PLAIN
    ) -> None:
        """See `Client.generate`."""
        fields = body(self._model, prompt, max_tokens) | self._more
        path = f"{self._dialer.path}/v1/{'chat/' if isinstance(prompt, tuple) else ''}completions"
        wire = request("POST", path, self._dialer.host, _HEADERS, msgspec.json.encode(fields))
        record.sent_s = self._clock()
        kept = None if conduct.reads_oddly else self._kept()
        if kept is not None and await self._ask(kept, wire, record, conduct):
            return
        try:
            connection = await self._dialer.open(
                lambda: _Connection(self._clock), is_small=conduct.reads_oddly
            )
        except OSError as error:
            record.fail("connect", describe(error))
            return
        await self._ask(connection, wire, record, conduct)

    async def _ask(self, connection: "_Connection", wire: bytes, record: Record, conduct: Conduct) -> bool:
        try:
            return await connection.ask(wire, record, conduct)
        finally:
            if connection.is_idle and not conduct.reads_oddly:
                self._idle.append(connection)
            else:
                connection.abort()

    def _kept(self) -> "_Connection | None":
        """The connection used last, for it is the least likely to be closed.

        If it has waited too long, so have all before it: they are closed one a request, for closing all at
        once would make this one late.
        """
        if not self._idle:
            return None
        connection = self._idle.pop()
        if connection.is_idle and self._clock() - connection.ended_s < _KEEPALIVE_S:
            return connection
        connection.abort()
        return None


class _Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, one request at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.ended_s = 0.0
        self._clock = clock
        self._num_answered = 0
        self._transport: asyncio.Transport
        self._exchange: _Exchange | None = None

    @property
    def is_idle(self) -> bool:
        return self._exchange is None and not self._transport.is_closing()

    async def ask(self, wire: bytes, record: Record, conduct: Conduct) -> bool:
        """Sends `wire` and returns when its answer has ended.

        False: the server has closed the connection after an earlier answer, before it read this; it is to be
        asked again on a new one (RFC 9112, section 9.3.1). `record` says nothing of it.
        """
        if self._transport.is_closing():
            record.fail("disconnected", "the connection was closed as soon as it was open")
            return True
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._exchange = _Exchange(record, ended)
        if conduct is not PLAIN:
            self._exchange.manners = Manners(conduct, record, self._transport, self._leave)
        self._transport.write(wire)
        return await ended

    def abort(self) -> None:
        """What was asked is nobody's any more."""
        self._exchange = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()  # nothing was asked
            return
        try:
            exchange.take(data, self._clock())
        except HttpError as error:
            self._fail("bad_response", str(error))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._fail("bad_frame", describe(error))
        else:
            if exchange.is_complete:
                self._end(exchange, keeps_open=exchange.keeps_open)
            elif exchange.manners is not None:
                exchange.manners.read(len(data))
                exchange.manners.progressed()

    def connection_lost(self, exc: Exception | None) -> None:
        exchange = self._exchange
        if exchange is not None and exc is None and exchange.ends_at_close:
            self._end(exchange, keeps_open=False)
        elif exchange is not None and self._num_answered and not exchange.has_begun:
            self._settle(exchange, keeps_open=False, is_answered=False)
        else:
            self._fail("disconnected", "the connection was closed" if exc is None else describe(exc))

    def _leave(self) -> None:
        """The client has had enough: what it does not read, it will not read."""
        exchange = self._exchange
        if exchange is not None:
            exchange.record.ended_by = "client"
            self._settle(exchange, keeps_open=False)

    def _fail(self, reason: str, message: str) -> None:
        exchange = self._exchange
        if exchange is not None:
            exchange.record.fail(reason, message)
            self._settle(exchange, keeps_open=False)

    def _end(self, exchange: "_Exchange", *, keeps_open: bool) -> None:
        exchange.end()
        self._num_answered += 1
        self._settle(exchange, keeps_open=keeps_open)

    def _settle(self, exchange: "_Exchange", *, keeps_open: bool, is_answered: bool = True) -> None:
        self._exchange = None
        self.ended_s = self._clock()
        if not keeps_open:
            self.abort()
        if not exchange.ended.done():
            exchange.ended.set_result(is_answered)


class _Exchange:
    """One request's answer, from its first byte to its last."""

    def __init__(self, record: Record, ended: asyncio.Future[bool]) -> None:
        self.record = record
        self.ended = ended
        self.manners: Manners | None = None
        self._head: Head | None = None
        self._start = b""
        self._body: BodyReader
        self._splitter = EventSplitter()
        self._answer = SseAnswer(record)
        self._error = b""

    @property
    def has_begun(self) -> bool:
        return self._head is not None or bool(self._start)

    @property
    def is_complete(self) -> bool:
        return self._head is not None and self._body.is_complete

    @property
    def ends_at_close(self) -> bool:
        return self._head is not None and self._body.ends_at_close

    @property
    def keeps_open(self) -> bool:
        return self._body.keeps_open

    def take(self, data: bytes, now_s: float) -> None:
        """Raises HttpError, or msgspec.DecodeError or UnicodeDecodeError for an event that is no chunk."""
        if self._head is None:
            self._head, data = take_head(self._start + data)
            if self._head is None:
                self._start = data
                return
            self.record.first_byte_s = now_s
            self._body = BodyReader(self._head)
        content = self._body.feed(data)
        if self._head.status != 200:
            self._error += content
            return
        for event in self._splitter.feed(content):
            self._answer.event(event, now_s)

    def end(self) -> None:
        """The response ended in order."""
        if self._head is None or self._head.status == 200:
            self._answer.end()
            return
        self.record.retry_after_s = _seconds(self._head.fields.get("retry-after"))
        self.record.fail(f"http_{self._head.status}", error_message(self._error))


def _seconds(retry_after: str | None) -> float | None:
    """Of Retry-After in seconds; its other form, a date, is left out."""
    is_number = retry_after is not None and retry_after.isascii() and retry_after.isdigit()
    return float(retry_after or "") if is_number else None
