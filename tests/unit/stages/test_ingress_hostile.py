"""Raw sockets: clients that are old, slow, broken or malicious."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from pipeline.messages import FinishReason
from tests.unit.stages.ingress_world import World, completion, on_both_loops, until, world


def request(body: bytes, *, version: str = "1.1", more: str = "") -> bytes:
    head = f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
STREAM = request(b'{"prompt":"Hi","stream":true}')


async def connect(w: World, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", w.port)
    writer.write(data)
    return reader, writer


@on_both_loops
async def test_http_10_streams_without_chunks_until_the_connection_ends() -> None:
    async with world() as w:
        reader, writer = await connect(w, request(b'{"prompt":"Hi","stream":true}', version="1.0"))
        await w.engine.answer()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b"200 OK" in head and b"chunked" not in head.lower()
        assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")
        writer.close()


@on_both_loops
async def test_chunks_are_well_formed() -> None:
    async with world() as w:
        reader, writer = await connect(w, STREAM)
        await w.engine.answer(["a", "b" * 5000])
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            assert await reader.readexactly(2) == b"\r\n"
        assert await reader.readexactly(2) == b"\r\n"
        assert body.endswith(b"data: [DONE]\n\n") and b"b" * 5000 in body
        writer.close()


@on_both_loops
async def test_a_reset_is_noticed() -> None:
    """Trap 67."""
    async with world() as w:
        sock = socket.create_connection(("127.0.0.1", w.port))
        sock.sendall(STREAM)
        _, sink = await w.engine.next()
        sink.delta("a", 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
        async with asyncio.timeout(1):
            await w.engine.cancelled()
        for _ in range(20):
            sink.delta("late", 1)
        sink.done(completion(FinishReason.CANCELLED))


@on_both_loops
async def test_a_slow_reader_is_measured_and_cut_off() -> None:
    async with world(write_timeout_s=0.3) as w:
        sock = _small_socket(w.port)
        sock.sendall(STREAM)
        _, sink = await w.engine.next()
        for _ in range(100):
            sink.delta("x" * 100_000, 1)
            await asyncio.sleep(0)
        await until(lambda: sink.buffered_bytes() > 1_000_000)
        sink.done(completion())
        await until(lambda: not w.stage._runner.server.connections, 2)
        sock.close()


@on_both_loops
async def test_a_whole_answer_that_is_not_read_is_cut_off() -> None:
    async with world(write_timeout_s=0.3) as w:
        sock = _small_socket(w.port)
        sock.sendall(request(b'{"prompt":"Hi"}'))
        await w.engine.answer(["x" * 20_000_000])
        await until(lambda: not w.stage._runner.server.connections, 2)
        sock.close()


def _small_socket(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    return sock


@on_both_loops
async def test_slow_headers_and_slow_bodies() -> None:
    async with world(keepalive_s=0.3, body_timeout_s=0.3) as w:
        head, head_writer = await connect(w, b"POST /v1/completions HTTP/1.1\r\nHost:")
        body, body_writer = await connect(w, request(b"x" * 10)[:-5])
        async with asyncio.timeout(4):
            assert await head.read() == b""
            answer = await body.read()
        assert b"408" in answer.splitlines()[0] and b"body_timeout" in answer
        head_writer.close()
        body_writer.close()
        assert w.stage.num_live == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        POST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
        POST + CHUNKED + b"\r\nzz\r\nhello\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 10_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: y\r\n\r\n",
        b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ],
)
def test_malformed_http_is_refused(data: bytes) -> None:
    """R3: a 4xx or a close within a second, nothing live, nothing of our insides in the body."""

    async def main() -> None:
        async with world() as w:
            reader, writer = await connect(w, data)
            writer.write_eof()
            async with asyncio.timeout(1):
                answer = await reader.read()
            assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
            assert b"Traceback" not in answer and b".py" not in answer
            assert w.stage.num_live == 0
            writer.close()

    asyncio.run(main())


@on_both_loops
async def test_prompts_reach_no_log() -> None:
    canary = "canary-7261"
    async with world() as w:
        for body in (
            b'{"prompt":"%b"' % canary.encode(),
            b'{"prompt":"%b","top_p":9}' % canary.encode(),
            b'{"prompt":{"%b":1}}' % canary.encode(),
            b'{"%b":1}' % canary.encode(),
        ):
            async with w.client.post(w.url("/v1/completions"), data=body) as response:
                assert response.status == 400
        reader, writer = await connect(w, f"GARBAGE {canary}\r\n\r\n".encode())
        await reader.read()
        writer.close()
        _break(w)
        await w.error(w.post("/v1/completions", {"prompt": canary}), 500, "server_error")
        assert any(call.method_name == "error" for call in w.log.calls)
        assert canary not in repr(w.log.calls)


def _break(w: World) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    w.stage._intake._opens = type("Broken", (), {"post": broken})()


@on_both_loops
async def test_an_internal_fault_after_the_first_byte_only_ends_the_connection() -> None:
    async with world(ping_interval_s=0.1) as w:
        reader, writer = await connect(w, STREAM)
        _, sink = await w.engine.next()
        sink.delta("a", 1)
        await reader.readuntil(b"\r\n\r\n")
        sink._stream.ping = None
        rest = b""
        with contextlib.suppress(ConnectionError):
            rest = await reader.read()
        assert b"HTTP/1.1" not in rest and b"server_error" not in rest
        await w.engine.cancelled()
        sink.done(completion(FinishReason.CANCELLED))
        writer.close()


@on_both_loops
async def test_a_stream_is_lost_by_the_kernel_if_its_peer_is_silent() -> None:
    async with world(ping_interval_s=2) as w:
        reader, writer = await connect(w, STREAM)
        await w.engine.answer()
        await reader.readuntil(b"\r\n\r\n")
        (handler,) = w.stage._runner.server.connections
        sock = handler.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2000
        writer.close()
