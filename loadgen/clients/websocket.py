"""`GET /v1/stream`: JSON frames, requests multiplexed over a few WebSockets that are open before the run.

A request takes the socket with the fewest live requests. A socket that breaks fails the requests
on it, and the next request opens a new one in its place.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import aiohttp
import msgspec

from loadgen.clients.api import ErrorBody, Prompt, Usage, body, describe, finish
from loadgen.errors import ServerError
from loadgen.record import Record

_MAX_FRAME_BYTES = 16 * 2**20
_Socket = aiohttp.ClientWebSocketResponse[bool]


class _Frame(msgspec.Struct):
    type: str
    id: str | None = None
    text: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None
    error: ErrorBody | None = None


_frames = msgspec.json.Decoder(_Frame)


class _Live:
    """A request that waits for its answer."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.ended = asyncio.Event()

    def fail(self, reason: str, message: str) -> None:
        self.record.fail(reason, message)
        self.ended.set()

    def done(self, frame: _Frame) -> None:
        if frame.usage is not None:
            self.record.usage(frame.usage.prompt_tokens, frame.usage.completion_tokens)
        finish(self.record, frame.finish_reason)
        self.ended.set()


class _Connection:
    """One open WebSocket and the requests on it. Once it is broken it stays so."""

    def __init__(self, socket: _Socket, clock: Callable[[], float]) -> None:
        self.live: dict[str, _Live] = {}
        self.is_open = True
        self._socket = socket
        self._clock = clock

    async def read(self) -> None:
        """Takes frames until the socket ends, then fails the requests that are left."""
        why = "the websocket was closed"
        try:
            async for message in self._socket:
                self._take(message.data, self._clock())
        except (aiohttp.ClientError, OSError) as error:
            why = describe(error)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            why = f"bad frame: {describe(error)}"
        finally:
            self.is_open = False
            self._fail_all("disconnected", f"{why} (code {self._socket.close_code})")
            await self._socket.close()

    async def send(self, frame: dict[str, Any]) -> None:
        """Raises aiohttp.ClientError or OSError when the socket is broken."""
        await self._socket.send_frame(msgspec.json.encode(frame), aiohttp.WSMsgType.TEXT)

    async def close(self) -> None:
        await self._socket.close()

    def _take(self, data: bytes, now_s: float) -> None:
        """One frame. Unknown types, and frames of requests that have ended here, are nobody's."""
        frame = _frames.decode(data)
        if frame.type == "error" and frame.id is None:
            self._fail_all("error_frame", frame.error.message if frame.error else "no message")
        live = self.live.get(frame.id or "")
        if live is None:
            return
        if frame.type == "delta":
            if frame.tokens:
                live.record.chunk(now_s, frame.tokens, is_answer=bool(frame.text))
        elif frame.type == "error":
            error = frame.error or ErrorBody("no message")
            live.fail(f"error_{error.code or 'frame'}", error.message)
        elif frame.type == "done":
            live.done(frame)

    def _fail_all(self, reason: str, message: str) -> None:
        for live in self.live.values():
            live.fail(reason, message)


class WebsocketClient:
    """Client for this project's server. Made by `connect_websocket`.

    Args:
        session: without a limit of connections.
        url: the server's root.
        clock: seconds after the start of the run.
        readers: runs one reader per connection.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str | None,
        clock: Callable[[], float],
        readers: asyncio.TaskGroup,
    ) -> None:
        self._session = session
        self._url = f"{url}/v1/stream"
        self._model = model
        self._clock = clock
        self._readers = readers
        self._opening = asyncio.Lock()
        self._connections: list[_Connection] = []
        self._ids = count()

    async def open(self, num_sockets: int) -> None:
        """Raises ServerError if a socket cannot be opened."""
        try:
            self._connections = [await self._connect() for _ in range(num_sockets)]
        except (aiohttp.ClientError, OSError) as error:
            raise ServerError(f"cannot open a websocket at {self._url}: {describe(error)}") from error

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def generate(self, prompt: Prompt, max_tokens: int, record: Record) -> None:
        """See `Client.generate`. Cancelled, it tells the server to stop that request."""
        try:
            connection = await self._least_busy()
        except (aiohttp.ClientError, OSError) as error:
            record.fail("connect", describe(error))
            return
        request_id = str(next(self._ids))
        live = connection.live[request_id] = _Live(record)
        frame = {"type": "generate", "id": request_id} | body(self._model, prompt, max_tokens)
        record.sent_s = self._clock()
        try:
            await connection.send(frame)
            await live.ended.wait()
        except (aiohttp.ClientError, OSError) as error:
            record.fail("disconnected", describe(error))
        except asyncio.CancelledError:
            with suppress(aiohttp.ClientError, OSError):  # a broken socket has cancelled it already
                await connection.send({"type": "cancel", "id": request_id})
            raise
        finally:
            del connection.live[request_id]

    async def _least_busy(self) -> _Connection:
        """Raises aiohttp.ClientError or OSError if a broken one cannot be replaced."""
        connections = self._connections
        best = min(range(len(connections)), key=lambda i: len(connections[i].live))
        if not connections[best].is_open:
            async with self._opening:
                if not connections[best].is_open:
                    connections[best] = await self._connect()
        return connections[best]

    async def _connect(self) -> _Connection:
        socket = await self._session.ws_connect(self._url, max_msg_size=_MAX_FRAME_BYTES, decode_text=False)
        connection = _Connection(socket, self._clock)
        self._readers.create_task(connection.read(), name="loadgen websocket reader")
        return connection


@asynccontextmanager
async def connect_websocket(
    session: aiohttp.ClientSession, url: str, model: str | None, clock: Callable[[], float], num_sockets: int
) -> AsyncIterator[WebsocketClient]:
    """A client with its sockets open; they are closed at the end.

    Raises:
        ServerError: a socket cannot be opened.
    """
    async with asyncio.TaskGroup() as readers:
        client = WebsocketClient(session, url, model, clock, readers)
        try:
            await client.open(num_sockets)
            yield client
        finally:
            await client.close()
