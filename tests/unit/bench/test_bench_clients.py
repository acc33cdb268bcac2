import asyncio
from typing import Any, cast

import msgspec
import pytest

from pipeline.bench.clients import Client, SseClient, Tally, WebsocketClient
from pipeline.bench.wire import PONG
from pipeline.core.framing import http_chunk, text_frame

UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
STREAMED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class FakeTransport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.is_aborted = True


def connected(make: type[Client], max_tokens: int = 3) -> tuple[Client, Tally, FakeTransport]:
    tally, transport = Tally(), FakeTransport()
    client = make(tally, "localhost:1", "hi", max_tokens)
    client.connection_made(cast(asyncio.Transport, transport))
    return client, tally, transport


def frame(**fields: Any) -> bytes:
    return text_frame(msgspec.json.encode(fields))


def delta(text: str, tokens: int) -> bytes:
    return frame(type="delta", id="a", text=text, tokens=tokens)


def done(tokens: int, reason: str = "length") -> bytes:
    return frame(type="done", id="a", finish_reason=reason, usage={"completion_tokens": tokens})


def test_a_websocket_client_asks_counts_and_asks_again() -> None:
    client, tally, transport = connected(WebsocketClient)
    stream = UPGRADED + frame(type="accepted", id="a") + delta('"tokens":9}', 1) + delta("x", 2) + done(3)
    for byte in stream:
        client.data_received(bytes((byte,)))
    assert (tally.tokens, tally.chunks, tally.requests, tally.failures) == (3, 2, 1, [])
    upgrade, *requests = transport.written
    assert upgrade.startswith(b"GET /v1/stream HTTP/1.1\r\n")
    assert len(requests) == 2
    assert requests[0] == requests[1]


def test_a_ping_is_answered() -> None:
    client, _, transport = connected(WebsocketClient)
    client.data_received(UPGRADED + bytes((0x89, 2)) + b"ok")
    assert transport.written[-1] == bytes((0x80 | PONG, 0x80 | 2)) + bytes(4) + b"ok"


@pytest.mark.parametrize(
    "stream",
    [
        UPGRADED + delta("ab", 2) + done(3),
        UPGRADED + delta("abc", 3) + done(2),
        UPGRADED + delta("abc", 3) + done(3, "stop"),
        UPGRADED + frame(type="error", id="a", error={"message": "no"}),
        UPGRADED + bytes((0x88, 0)),
        UPGRADED + frame(type="delta", id="a", text="no count"),
        b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
    ],
    ids=["tokens lost", "usage wrong", "ended early", "error", "closed", "not understood", "refused"],
)
def test_what_is_wrong_is_one_failure_and_ends_the_client(stream: bytes) -> None:
    client, tally, transport = connected(WebsocketClient)
    client.data_received(stream)
    client.connection_lost(None)
    assert tally.requests == 0
    assert tally.num_failures == len(tally.failures) == 1
    assert transport.is_aborted


def event(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason}
    return b"data: " + msgspec.json.encode({"choices": [choice], "usage": None}) + b"\n\n"


def usage(tokens: int) -> bytes:
    body = {"choices": [], "usage": {"completion_tokens": tokens}}
    return b"data: " + msgspec.json.encode(body) + b"\n\ndata: [DONE]\n\n"


def test_an_sse_client_asks_counts_and_asks_again() -> None:
    client, tally, transport = connected(SseClient)
    answer = http_chunk(event('a"')) + http_chunk(b": ping\n\n")
    answer += http_chunk(event("\\") + event("", "length") + usage(3)) + b"0\r\n\r\n"
    for byte in STREAMED + answer + STREAMED + answer:
        client.data_received(bytes((byte,)))
    assert (tally.tokens, tally.chunks, tally.requests, tally.failures) == (6, 4, 2, [])
    assert len(transport.written) == 3


def test_an_sse_answer_with_an_error_is_a_failure() -> None:
    client, tally, _ = connected(SseClient)
    client.data_received(STREAMED + http_chunk(b'data: {"error":{"message":"no"}}\n\n'))
    assert tally.num_failures == 1


def test_a_connection_that_is_lost_is_a_failure_unless_the_bench_is_over() -> None:
    client, tally, _ = connected(WebsocketClient)
    client.connection_lost(ConnectionResetError())
    assert tally.num_failures == 1
    client, tally, _ = connected(WebsocketClient)
    client.close()
    client.connection_lost(None)
    assert tally.num_failures == 0
