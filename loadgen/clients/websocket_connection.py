"""One open WebSocket and the requests on it."""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

from loadgen.clients import frames
from loadgen.clients.api import ErrorBody, Usage, describe, finish, timings
from loadgen.clients.http1 import HttpError, request, take_head
from loadgen.clients.manners import Manners
from loadgen.record import Record

_MAX_MESSAGE_BYTES = 16 * 2**20
_UPGRADE_S = 10.0
_CLOSE_S = 1.0
_NORMAL = (1000).to_bytes(2)


class _Frame(msgspec.Struct, gc=False):
    type: str
    id: str | None = None
    text: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None
    error: ErrorBody | None = None
    timings: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Frame).decode


class Live:
    """A request that waits for its answer; `ended` is done with it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.manners: Manners | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, reason: str, message: str) -> None:
        if not self.ended.done():
            self.record.fail(reason, message)
            self.end()

    def take(self, frame: _Frame, now_s: float) -> None:
        """One frame of this request. Unknown types are ignored."""
        record = self.record
        if self.ended.done():
            return
        if record.first_byte_s is None:
            record.first_byte_s = now_s
        if frame.type == "delta":
            if frame.tokens:
                record.chunk(now_s, frame.tokens, is_answer=bool(frame.text))
            if record.text is not None:
                record.say(frame.text)
        elif frame.type == "error":
            error = frame.error or ErrorBody("no message")
            self.fail(f"error_{error.code or 'frame'}", error.message)
        elif frame.type == "done":
            self._done(frame)

    def _done(self, frame: _Frame) -> None:
        if frame.usage is not None:
            self.record.usage(frame.usage.prompt_tokens, frame.usage.completion_tokens)
        self.record.server_timings = timings(frame.timings)
        finish(self.record, frame.finish_reason)
        self.end()


class Connection(asyncio.Protocol):
    """A WebSocket; `upgrade` comes first. Once broken it stays so, and its live requests have failed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.live: dict[str, Live] = {}
        self.is_open = False
        self.owner: Manners | None = None
        """Of the one request that this socket is for."""
        self.transport: asyncio.Transport
        self._clock = clock
        self._key = frames.key()
        self._reader = frames.FrameReader(_MAX_MESSAGE_BYTES)
        self._head = b""
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost = asyncio.Event()

    async def upgrade(self, path: str, host: str) -> None:
        """Raises OSError if the server does not want to."""
        fields = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": self._key,
        }
        self.transport.write(request("GET", path, host, fields))
        try:
            await asyncio.wait_for(self._opened, _UPGRADE_S)
        except BaseException:
            self.transport.abort()
            raise

    def send(self, payload: bytes) -> None:
        """On a broken socket nothing is sent: its requests have failed."""
        self.transport.write(frames.client_frame(frames.TEXT, payload))

    def cancel(self, name: str) -> None:
        """Tells the server that nobody waits for this request."""
        if self.is_open:
            self.send(msgspec.json.encode({"type": "cancel", "id": name}))

    def hang_up(self) -> None:
        """Says goodbye and is gone."""
        if self.is_open:
            self.is_open = False
            self.transport.write(frames.client_frame(frames.CLOSE, _NORMAL))
            self.transport.close()

    async def close(self) -> None:
        """Says goodbye, and waits a moment for the answer."""
        if self.is_open:
            self.is_open = False
            self.transport.write(frames.client_frame(frames.CLOSE, _NORMAL))
            try:
                await asyncio.wait_for(self._lost.wait(), _CLOSE_S)
            except TimeoutError:
                self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._break("the websocket was closed" if exc is None else describe(exc))
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        now_s = self._clock()
        try:
            if not self._opened.done():
                data = self._upgraded(data)
            for opcode, payload in self._reader.feed(data):
                if opcode == frames.TEXT:
                    self._take(payload, now_s)
                else:
                    self._obey(opcode, payload)
        except (frames.FrameError, HttpError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self._break(f"bad frame: {describe(error)}")
        if self.owner is not None:
            self.owner.read(len(data))

    def _upgraded(self, data: bytes) -> bytes:
        """What follows the server's head, once it has come."""
        head, rest = take_head(self._head + data)
        if head is None:
            self._head = rest
            return b""
        if head.status != 101 or head.fields.get("sec-websocket-accept") != frames.accept(self._key):
            self._opened.set_exception(OSError(f"the upgrade was answered with status {head.status}"))
            return b""
        self.is_open = True
        self._opened.set_result(None)
        return rest

    def _take(self, payload: bytes, now_s: float) -> None:
        """One text frame. Those of requests that have ended here are nobody's."""
        frame = _decode(payload)
        live = self.live.get(frame.id or "")
        if live is not None:
            live.take(frame, now_s)
            if live.manners is not None and not live.ended.done():
                live.manners.progressed()
        elif frame.type == "error" and frame.id is None:
            self._fail_all("error_frame", frame.error.message if frame.error else "no message")

    def _obey(self, opcode: int, payload: bytes) -> None:
        if opcode == frames.PING:
            self.transport.write(frames.client_frame(frames.PONG, payload))
        elif opcode == frames.CLOSE:
            code = int.from_bytes(payload[:2]) if payload else None
            self.transport.write(frames.client_frame(frames.CLOSE, payload[:2]))
            self.transport.close()
            self._break(f"the server closed the websocket (code {code})")

    def _break(self, why: str) -> None:
        if not self._opened.done():
            self._opened.set_exception(OSError(why))
            self._opened.exception()  # seen: whoever dialled may have left
        self.is_open = False
        self._fail_all("disconnected", why)
        if not self.transport.is_closing():
            self.transport.abort()

    def _fail_all(self, reason: str, message: str) -> None:
        for live in self.live.values():
            live.fail(reason, message)
