"""The websocket door over real sockets."""

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from pipeline.errors import RequestError
from pipeline.messages import ClientSink, FinishReason, GenerateRequest
from tests.unit.stages.ingress_world import World, completion, on_both_loops, until, world

UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def masked(payload: bytes) -> bytes:
    """A client's text frame with a mask of zeros."""
    size = len(payload)
    head = bytes((0x81, 0x80 | size)) if size < 126 else b"\x81\xfe" + size.to_bytes(2, "big")
    return head + bytes(4) + payload


class Peer:
    """A client's socket."""

    def __init__(self, w: World, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._w = w
        self.socket = socket

    async def generate(self, client_id: str, **fields: Any) -> tuple[GenerateRequest, ClientSink]:
        await self.socket.send_json({"type": "generate", "id": client_id, "prompt": "Hi", **fields})
        assert await self.read() == {"type": "accepted", "id": client_id}
        return await self._w.engine.next()

    async def read(self) -> Any:
        return await self.socket.receive_json(timeout=5)

    async def refused(self, frame: Any, code: str) -> dict[str, Any]:
        """Send what must be answered with an error frame."""
        await (self.socket.send_str(frame) if isinstance(frame, str) else self.socket.send_json(frame))
        return await self.error(code)

    async def error(self, code: str) -> dict[str, Any]:
        answer = await self.read()
        assert answer["type"] == "error"
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["code"] == code
        return {"id": answer["id"], **answer["error"]}


@asynccontextmanager
async def peer(w: World, **more: Any) -> Any:
    async with w.client.ws_connect(w.url("/v1/stream"), **more) as socket:
        yield Peer(w, socket)


def delta(client_id: str, text: str) -> dict[str, Any]:
    return {"type": "delta", "id": client_id, "text": text, "tokens": 1}


@on_both_loops
async def test_requests_are_multiplexed() -> None:
    async with world() as w, peer(w) as p:
        first, a = await p.generate("a", temperature=0)
        second, b = await p.generate("b", timings=True)
        assert (first.request_id, first.sampling.temperature, second.request_id) == (0, 0.0, 1)
        a.delta("one", 1)
        b.delta("x" * 200, 1)
        a.delta("\u20ac", 1)
        b.done(completion())
        a.delta("y" * 70_000, 1)
        a.done(completion(FinishReason.LENGTH))
        assert await p.read() == delta("a", "one")
        assert await p.read() == delta("b", "x" * 200)
        assert await p.read() == delta("a", "\u20ac")
        done = await p.read()
        assert len(done.pop("timings")["segments_ms"]) == 13
        usage = {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        assert done == {"type": "done", "id": "b", "finish_reason": "stop", "usage": usage}
        assert await p.read() == delta("a", "y" * 70_000)
        assert await p.read() == {"type": "done", "id": "a", "finish_reason": "length", "usage": usage}
        assert w.stage.num_live == 0 and w.engine.num_cancels() == 0


@on_both_loops
async def test_cancel() -> None:
    async with world() as w, peer(w) as p:
        request, sink = await p.generate("a")
        for _ in range(2):
            await p.socket.send_json({"type": "cancel", "id": "a"})
        cancel = await w.engine.cancelled()
        assert (cancel.request_id, cancel.reason) == (request.request_id, FinishReason.CANCELLED)
        sink.delta("on its way", 1)
        sink.done(completion(FinishReason.CANCELLED))
        assert await p.read() == delta("a", "on its way")
        assert (await p.read())["finish_reason"] == "cancelled"
        await p.socket.send_json({"type": "cancel", "id": "a"})
        _, again = await p.generate("a")  # the id is free again, and a late cancel hurts nobody
        again.done(completion())
        assert (await p.read())["type"] == "done"
        assert w.engine.num_cancels() == 0


@on_both_loops
async def test_a_socket_that_closes_cancels_all_its_requests() -> None:
    async with world() as w:
        async with peer(w) as p:
            sinks = [(await p.generate(str(k)))[1] for k in range(3)]
            _, finished = await p.generate("finished")
            finished.done(completion())
            p.socket._response.connection.transport.abort()
            async with asyncio.timeout(1):
                await until(lambda: w.engine.num_cancels() == 3)
        sinks[0].delta("late", 1)
        assert w.stage.num_live == 3
        for sink in sinks:
            sink.done(completion(FinishReason.CANCELLED))
        await asyncio.sleep(0.01)
        assert w.engine.num_cancels() == 3


@on_both_loops
async def test_faults_are_answered_and_cost_the_others_nothing() -> None:
    async with world(max_requests_per_socket=2) as w, peer(w) as p:
        _, sink = await p.generate("live")
        assert (await p.refused("{nope", "invalid_json"))["id"] is None
        assert (await p.refused([1], "invalid_json"))["id"] is None
        assert (await p.refused({"type": "generate"}, "invalid_value"))["param"] == "id"
        assert (await p.refused({"type": "dance", "id": "z"}, "unknown_type"))["id"] == "z"
        assert (await p.refused({"id": "z"}, "unknown_type"))["param"] == "type"
        again = {"type": "generate", "id": "live", "prompt": "x"}
        assert (await p.refused(again, "duplicate_id"))["id"] == "live"
        bad = {"type": "generate", "id": "b", "prompt": "x", "top_p": 0}
        assert (await p.refused(bad, "invalid_value"))["param"] == "top_p"
        await p.socket.send_bytes(b"\x00\x01")
        assert (await p.error("not_text"))["id"] is None
        _, other = await p.generate("other")
        await p.refused({"type": "generate", "id": "third", "prompt": "x"}, "too_many_requests")
        other.error(RequestError("too long", param="prompt", code="context_length_exceeded"))
        assert (await p.error("context_length_exceeded"))["id"] == "other"
        sink.done(completion())
        assert (await p.read())["id"] == "live"


@on_both_loops
async def test_a_full_queue_is_an_error_frame() -> None:
    async with world(queue_bound=1) as w, peer(w) as p:
        await p.socket.send_json({"type": "generate", "id": "a", "prompt": "x"})
        assert (await p.read())["type"] == "accepted"
        error = await p.refused({"type": "generate", "id": "b", "prompt": "x"}, "queue_full")
        assert (error["id"], error["type"]) == ("b", "overloaded_error")
        await w.engine.answer()
        assert [(await p.read())["type"] for _ in range(3)] == ["delta", "delta", "done"]


@on_both_loops
async def test_an_oversized_frame_closes_that_socket_only() -> None:
    async with world(max_frame_bytes=1024) as w, peer(w) as p, peer(w) as other:
        _, sink = await p.generate("a")
        await p.socket.send_str("x" * 2000)
        message = await p.socket.receive(timeout=5)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1009)
        await w.engine.cancelled()
        sink.delta("late", 1)
        sink.done(completion(FinishReason.CANCELLED))
        _, alive = await other.generate("a")
        alive.done(completion())
        assert (await other.read())["type"] == "done"


@on_both_loops
async def test_nothing_follows_a_close_frame() -> None:
    """RFC 6455 section 5.5.1; the server waits for a client's close frame that does not come."""
    async with world(max_frame_bytes=1024, write_timeout_s=0.3) as w:
        reader, writer = await asyncio.open_connection("127.0.0.1", w.port)
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(masked(b'{"type":"generate","id":"a","prompt":"x"}'))
        _, sink = await w.engine.next()
        writer.write(masked(b"x" * 2000))
        frames = await reader.readuntil(b"\x88")
        assert b"accepted" in frames
        size = (await reader.readexactly(1))[0]
        assert (await reader.readexactly(size))[:2] == (1009).to_bytes(2, "big")
        sink.delta("late", 1)
        assert await reader.read() == b""
        await w.engine.cancelled()
        sink.done(completion(FinishReason.CANCELLED))
        writer.close()


@on_both_loops
async def test_a_silent_peer_is_pinged_and_given_up() -> None:
    async with world(ping_interval_s=0.2) as w, peer(w, autoping=False) as p:
        _, sink = await p.generate("a")
        assert (await p.socket.receive(timeout=1)).type is aiohttp.WSMsgType.PING
        async with asyncio.timeout(1):
            await w.engine.cancelled()
        sink.done(completion(FinishReason.CANCELLED))


@on_both_loops
async def test_a_slow_reader_shows_in_buffered_bytes() -> None:
    async with world() as w, peer(w) as p:
        _, sink = await p.generate("a")
        p.socket._response.connection.transport.pause_reading()
        for _ in range(200):
            sink.delta("x" * 100_000, 1)
            await asyncio.sleep(0)
        assert sink.buffered_bytes() > 1_000_000
        p.socket._response.connection.transport.resume_reading()
        sink.done(completion())
        for _ in range(200):
            assert (await p.read())["type"] == "delta"
        assert (await p.read())["type"] == "done"
        assert sink.buffered_bytes() == 0


@on_both_loops
async def test_a_client_that_floods_and_does_not_read_is_cut_off() -> None:
    async with world(write_timeout_s=0.2) as w, peer(w) as p:
        p.socket._response.connection.transport.pause_reading()
        noise = "[" + "1" * 100
        async with asyncio.timeout(10):
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                while w.stage._websocket.sockets:
                    for _ in range(500):
                        await p.socket.send_str(noise)
                    await asyncio.sleep(0.01)
        await until(lambda: not w.stage._websocket.sockets)


@on_both_loops
async def test_a_socket_opened_with_a_key_is_of_its_tenant() -> None:
    async with world() as w:
        headers = {"Authorization": "Bearer s3cret"}
        async with w.client.ws_connect(w.url("/v1/stream"), headers=headers) as socket:
            await socket.send_json({"type": "generate", "id": "a", "prompt": "x", "user": "ann"})
            request, sink = await w.engine.next()
            assert request.terms.tenant.startswith("key-")
            sink.error(RequestError("later", status=503, code="wait", retry_after_s=3))
            assert (await socket.receive_json())["type"] == "accepted"
            assert (await socket.receive_json())["error"]["retry_after_s"] == 3
