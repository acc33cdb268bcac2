"""Clients that cost as little as can be, so that a bench measures the server: protocols without a library.

Each keeps one request under way, checks that it ends with the tokens it asked for, and begins the next.
"""

import asyncio
import base64
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from pipeline.bench.wire import (
    CLOSE,
    PING,
    PONG,
    TEXT,
    Answer,
    client_frame,
    take_chunks,
    take_frames,
    take_head,
)

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_DELTA = b'{"type":"delta"'
_TOKENS = b'"tokens":'
_EVENT = b"data: "
_MAX_KEPT = 20


@dataclass(slots=True)
class Tally:
    """What all clients together have received."""

    tokens: int = 0
    chunks: int = 0
    """Writes that carry text."""
    requests: int = 0
    """Ended as they should."""
    num_failures: int = 0
    failures: list[str] = field(default_factory=list)
    """The first few."""

    def fail(self, reason: str) -> None:
        self.num_failures += 1
        if len(self.failures) < _MAX_KEPT:
            self.failures.append(reason)


class Client(asyncio.Protocol, ABC):
    """One connection. Stops at its first failure."""

    def __init__(self, tally: Tally, host: str, prompt: str, max_tokens: int) -> None:
        self.is_closing = False
        self._tally = tally
        self._host = host
        self._max_tokens = max_tokens
        self._wanted = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
        self._rest = b""
        self._num_tokens = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_closing:
            self._tally.fail(f"connection lost: {exc!r}")

    def data_received(self, data: bytes) -> None:
        try:
            self._rest = self._take(self._rest + data if self._rest else data)
        except (ValueError, KeyError, msgspec.DecodeError) as error:
            self._fail(f"cannot be understood: {error!r}")

    def close(self) -> None:
        self.is_closing = True
        self._transport.abort()

    def _received(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._tally.tokens += num_tokens
        self._tally.chunks += 1

    def _ended(self, completion_tokens: int, finish_reason: str) -> None:
        counted, self._num_tokens = self._num_tokens, 0
        if not counted == completion_tokens == self._max_tokens or finish_reason != "length":
            self._fail(
                f"asked for {self._max_tokens} tokens, received {counted}, usage says {completion_tokens}, "
                f"finish_reason {finish_reason!r}"
            )
            return
        self._tally.requests += 1
        self._ask()

    def _fail(self, reason: str) -> None:
        self._tally.fail(reason)
        self.close()

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _ask(self) -> None: ...

    @abstractmethod
    def _take(self, data: bytes) -> bytes:
        """Act on what is whole; the rest."""


class WebsocketClient(Client):
    """GET /v1/stream. A delta is not decoded: its token count stands at its end."""

    _is_open = False

    def _open(self) -> None:
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self._transport.write(
            f"GET /v1/stream HTTP/1.1\r\nHost: {self._host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        frame = {"type": "generate", "id": "a", **self._wanted}
        self._request = client_frame(TEXT, msgspec.json.encode(frame))

    def _ask(self) -> None:
        self._transport.write(self._request)

    def _take(self, data: bytes) -> bytes:
        if not self._is_open:
            answer, data = take_head(data)
            if answer is None:
                return data
            if answer.status != 101:
                raise ValueError(f"the upgrade was answered {answer.status}")
            self._is_open = True
            self._ask()
        frames, rest = take_frames(data)
        for opcode, payload in frames:
            if payload.startswith(_DELTA):
                self._received(int(payload[payload.rindex(_TOKENS) + len(_TOKENS) : -1]))
            else:
                self._obey(opcode, payload)
        return rest

    def _obey(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self._transport.write(client_frame(PONG, payload))
        elif opcode == CLOSE:
            self._fail("the server closed the socket")
        elif opcode == TEXT:
            frame = _decode(payload)
            if frame["type"] == "done":
                self._ended(frame["usage"]["completion_tokens"], frame["finish_reason"])
            elif frame["type"] == "error":
                self._fail(f"error: {frame['error']}")


class SseClient(Client):
    """POST /v1/completions on a connection that is kept. The fake model's tokens are one character each."""

    _answer: Answer | None = None
    _usage = 0
    _finish_reason = ""

    def _open(self) -> None:
        wanted = {**self._wanted, "stream": True, "stream_options": {"include_usage": True}}
        body = msgspec.json.encode(wanted)
        self._request = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self._ask()

    def _ask(self) -> None:
        self._transport.write(self._request)

    def _take(self, data: bytes) -> bytes:
        if self._answer is None:
            self._answer, data = take_head(data)
            if self._answer is None:
                return data
            if self._answer.status != 200:
                raise ValueError(f"answered {self._answer.status}: {data[:300]!r}")
        chunks, rest = take_chunks(data)
        for chunk in chunks:
            if chunk:
                self._events(chunk)
            else:
                self._answer = None
                self._ended(self._usage, self._finish_reason)
        return rest

    def _events(self, chunk: bytes) -> None:
        for event in chunk.split(b"\n\n"):
            if event.startswith(_EVENT + b"{"):
                self._event(_decode(event[len(_EVENT) :]))

    def _event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise ValueError(f"error: {event['error']}")
        for choice in event["choices"]:
            if text := choice["text"]:
                self._received(len(text))
            self._finish_reason = choice["finish_reason"] or self._finish_reason
        if event.get("usage"):
            self._usage = event["usage"]["completion_tokens"]


PROTOCOLS: dict[str, type[Client]] = {"ws": WebsocketClient, "sse": SseClient}


async def connect(
    protocol: str, num_clients: int, host: str, port: int, prompt: str, max_tokens: int
) -> tuple[Tally, list[Client]]:
    """Open all connections; each begins its first request at once."""
    tally, make = Tally(), PROTOCOLS[protocol]
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    for _ in range(num_clients):
        _, client = await loop.create_connection(
            lambda: make(tally, f"{host}:{port}", prompt, max_tokens), host, port
        )
        clients.append(client)
    return tally, clients
