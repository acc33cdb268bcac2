"""WebSocket frames by hand, against the RFC's own examples and aiohttp's reading of them."""

import asyncio

import pytest
from aiohttp import WSMsgType, web

from loadgen.clients.dial import Dialer
from loadgen.clients.frames import (
    PING,
    TEXT,
    FrameError,
    FrameReader,
    accept,
    client_frame,
)
from loadgen.clients.websocket_connection import Connection

LIMIT = 200_000


def server_frame(opcode: int, payload: bytes, *, is_last: bool = True) -> bytes:
    size = len(payload)
    head = bytes([(0x80 if is_last else 0) | opcode])
    if size < 126:
        return head + bytes([size]) + payload
    if size < 65536:
        return head + b"\x7e" + size.to_bytes(2) + payload
    return head + b"\x7f" + size.to_bytes(8) + payload


def test_the_handshake_of_rfc_6455() -> None:
    assert accept("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_frames_of_rfc_6455() -> None:
    reader = FrameReader(LIMIT)
    assert reader.feed(bytes.fromhex("810548656c6c6f")) == [(TEXT, b"Hello")]
    assert reader.feed(bytes.fromhex("010348656c")) == []
    assert reader.feed(bytes.fromhex("890548656c6c6f80026c6f")) == [(PING, b"Hello"), (TEXT, b"Hello")]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 150_000])
def test_a_clients_frame_is_masked_and_whole(size: int) -> None:
    payload = bytes(i * 7 % 256 for i in range(size))
    frame = client_frame(TEXT, payload)
    begin = 2 + (0 if size < 126 else 2 if size < 65536 else 8)
    assert frame[0] == 0x81 and frame[1] & 0x80
    mask, masked = frame[begin : begin + 4], frame[begin + 4 :]
    assert bytes(byte ^ mask[i % 4] for i, byte in enumerate(masked)) == payload


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 70_000])
def test_messages_are_whole_however_the_bytes_are_cut(step: int) -> None:
    wanted = [(TEXT, b"a"), (TEXT, b"x" * 126), (PING, b"p"), (TEXT, b""), (TEXT, b"two parts")]
    wanted += [(TEXT, b"y" * 70_000)] if step > 7 else []
    parts = server_frame(TEXT, b"two ", is_last=False) + server_frame(0, b"parts")
    stream = b"".join(parts if text == b"two parts" else server_frame(code, text) for code, text in wanted)
    reader = FrameReader(LIMIT)
    pieces = [stream[i : i + step] for i in range(0, len(stream), step)]
    assert [message for piece in pieces for message in reader.feed(piece)] == wanted


@pytest.mark.parametrize(
    "broken",
    [
        bytes.fromhex("818537fa213d7f9f4d5158"),  # masked
        b"\xc1\x01a",  # compressed
        server_frame(0, b"the end of nothing"),
        server_frame(TEXT, b"a", is_last=False) + server_frame(TEXT, b"b"),
        server_frame(TEXT, b"x" * (LIMIT + 1)),
        server_frame(TEXT, b"x" * LIMIT, is_last=False) + server_frame(0, b"x"),
    ],
)
def test_what_breaks_the_protocol_is_an_error(broken: bytes) -> None:
    with pytest.raises(FrameError):
        FrameReader(LIMIT).feed(broken)


def test_pings_are_answered_and_a_close_is_said_goodbye_to() -> None:
    """aiohttp is the server: it reads our frames, and gives up on a client that answers no ping."""
    heard: list[WSMsgType] = []

    async def talk(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        await socket.ping(b"are you there")
        async for message in socket:
            heard.append(message.type)
            if message.type is WSMsgType.PONG:
                assert message.data == b"are you there"
        heard.append(WSMsgType.CLOSE)
        assert socket.close_code == 1000
        return socket

    async def body() -> None:
        app = web.Application()
        app.router.add_get("/v1/stream", talk)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        dialer = Dialer(f"http://127.0.0.1:{runner.addresses[0][1]}")
        connection = await dialer.open(lambda: Connection(lambda: 0.0))
        await connection.upgrade("/v1/stream", dialer.host)
        connection.send(b"hello")
        await asyncio.sleep(0.05)
        await connection.close()
        await runner.cleanup()
        assert heard == [WSMsgType.PONG, WSMsgType.TEXT, WSMsgType.CLOSE]

    asyncio.run(body())
