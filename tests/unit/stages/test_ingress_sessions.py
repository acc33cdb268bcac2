"""Version, session, resume, acknowledgements, grants and pings of the websocket door, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from pipeline.core.keys import fingerprint
from pipeline.messages import ClientSink, FinishReason, GenerateRequest, Grant
from tests.unit.stages.ingress_world import World, completion, on_both_loops, until, world

V1 = "stageline.v1"


class Peer:
    def __init__(self, w: World, socket: aiohttp.ClientWebSocketResponse, hello: dict[str, Any]) -> None:
        self._w = w
        self.socket = socket
        self.hello = hello
        self.session: str = hello["session"]

    async def send(self, kind: str, client_id: str = "a", **fields: Any) -> None:
        await self.socket.send_json({"type": kind, "id": client_id, **fields})

    async def read(self) -> Any:
        return await self.socket.receive_json(timeout=5)

    async def generate(self, client_id: str = "a", **fields: Any) -> tuple[GenerateRequest, ClientSink]:
        await self.send("generate", client_id, prompt="Hi", **({"resumable": True} | fields))
        assert await self.read() == {"type": "accepted", "id": client_id}
        return await self._w.engine.next()

    async def refused(self, kind: str, code: str, client_id: str = "a", **fields: Any) -> None:
        await self.send(kind, client_id, **fields)
        answer = await self.read()
        assert answer["type"] == "error" and answer["error"]["code"] == code, answer

    async def resume(self, session: str, index: int, client_id: str = "a") -> None:
        await self.send("resume", client_id, session=session, index=index)
        assert await self.read() == {"type": "resumed", "id": client_id, "index": index}

    async def texts(self, *texts: str, begin: int = 1) -> None:
        """What comes next, numbered."""
        for index, text in enumerate(texts, begin):
            expected = {"type": "delta", "id": "a", "index": index, "text": text, "tokens": 1}
            assert await self.read() == expected

    def lose(self) -> None:
        response: Any = self.socket._response
        response.connection.transport.abort()


@asynccontextmanager
async def peer(w: World, **more: Any) -> AsyncIterator[Peer]:
    async with w.client.ws_connect(w.url("/v1/stream"), protocols=(V1,), **more) as socket:
        assert socket.protocol == V1
        yield Peer(w, socket, await socket.receive_json(timeout=5))


def door(w: World) -> Any:
    return w.stage._websocket


async def lost(w: World, p: Peer) -> None:
    """Its socket breaks, and the server has seen it."""
    num_before = door(w).sessions.num_lost
    p.lose()
    await until(lambda: door(w).sessions.num_lost > num_before)


@on_both_loops
async def test_hello() -> None:
    async with world() as w, peer(w) as p, peer(w) as other:
        limits = p.hello["limits"]
        assert (p.hello["type"], p.hello["version"], p.hello["model"]) == ("hello", 1, "fake")
        assert limits == {
            "max_frame_bytes": 1 << 20,
            "max_requests": 256,
            "max_model_len": 2048,
            "ping_interval_s": 10.0,
            "resume_s": 10.0,
        }
        assert len(p.session) >= 32 and p.session != other.session
        await p.send("ping", "any")
        assert await p.read() == {"type": "pong", "id": "any"}


@on_both_loops
async def test_who_names_no_version_is_told_none_and_cannot_resume() -> None:
    async with world() as w, w.client.ws_connect(w.url("/v1/stream")) as socket:
        await socket.send_json({"type": "generate", "id": "a", "prompt": "x", "resumable": True})
        assert (await socket.receive_json())["error"]["code"] == "resume_off"
        await socket.send_json({"type": "generate", "id": "a", "prompt": "x"})
        assert (await socket.receive_json())["type"] == "accepted"
        await w.engine.answer()
        deltas = [await socket.receive_json() for _ in range(3)]
        assert all("index" not in each for each in deltas)


@on_both_loops
async def test_a_request_goes_on_at_another_socket() -> None:
    async with world() as w, peer(w) as first:
        _, sink = await first.generate()
        for text in "abc":
            sink.delta(text, 1)
        await first.texts("a", "b", "c")
        await lost(w, first)
        assert sink.is_away()
        sink.delta("d", 1)
        async with peer(w) as second:
            await second.resume(first.session, 2)
            await second.texts("c", "d", begin=3)
            assert not sink.is_away() and w.engine.num_cancels() == 0
            sink.delta("e", 1)
            sink.done(completion())
            await second.texts("e", begin=5)
            assert (await second.read())["index"] == 6
            await second.send("ack", index=6)
            await until(lambda: not door(w).sessions._expiries)
            assert w.stage.num_live == 0
        assert not door(w).sessions._by_token or w.stage.num_live == 0


@on_both_loops
async def test_an_answer_that_ended_meanwhile_is_kept() -> None:
    async with world() as w, peer(w) as first, peer(w) as second:
        _, sink = await first.generate()
        await lost(w, first)
        sink.delta("a", 1)
        sink.done(completion(FinishReason.LENGTH))
        assert w.stage.num_live == 0
        for _ in range(2):  # until its end is acknowledged, it can be had again
            await second.resume(first.session if _ == 0 else second.session, 0)
            await second.texts("a")
            assert (await second.read())["finish_reason"] == "length"
        await second.refused("generate", "duplicate_id", prompt="x")
        await second.send("ack", index=2)
        await second.refused("resume", "request_not_found", session=second.session, index=2)
        await second.generate()


@on_both_loops
async def test_nobody_comes_back() -> None:
    async with world(resume_s=0.3) as w, peer(w) as p:
        _, sink = await p.generate()
        _, other = await p.generate("b", resumable=False)
        p.lose()
        assert (await w.engine.cancelled()).request_id == 1, "one that cannot be resumed ends at once"
        other.done(completion(FinishReason.CANCELLED))
        assert (await w.engine.cancelled()).request_id == 0
        sink.delta("late", 1)
        sink.done(completion(FinishReason.CANCELLED))
        async with peer(w) as second:
            await second.refused("resume", "request_not_found", session=p.session, index=0)
        assert door(w).sessions.num_lost == 0


@on_both_loops
async def test_who_says_goodbye_does_not_come_back() -> None:
    async with world() as w, peer(w) as p:
        _, sink = await p.generate()
        await p.socket.close()
        await w.engine.cancelled()
        sink.done(completion(FinishReason.CANCELLED))


@on_both_loops
async def test_a_browser_that_goes_away_may_come_back() -> None:
    async with world() as w, peer(w) as p, peer(w) as second:
        _, sink = await p.generate()
        await p.socket.close(code=1001)
        await until(lambda: door(w).sessions.num_lost == 1)
        await second.resume(p.session, 0)
        sink.done(completion())
        assert (await second.read())["type"] == "done"


@on_both_loops
async def test_a_client_may_come_back_before_its_loss_is_seen() -> None:
    async with world() as w, peer(w) as old, peer(w) as new:
        _, sink = await old.generate()
        sink.delta("a", 1)
        await old.texts("a")
        await new.resume(old.session, 1)
        sink.delta("b", 1)
        await new.texts("b", begin=2)
        await old.socket.close()
        sink.done(completion())
        assert (await new.read())["type"] == "done" and w.engine.num_cancels() == 0


@on_both_loops
async def test_what_is_wrong_with_a_resume_leaves_the_request_where_it_is() -> None:
    async with world() as w, peer(w) as p, peer(w) as other:
        _, sink = await p.generate()
        sink.delta("a", 1)
        sink.delta("b", 1)
        await p.texts("a", "b")
        await p.send("ack", index=1)
        await p.refused("ack", "invalid_value", index=3)
        await other.refused("resume", "request_not_found", session="x" * 32, index=1)
        await other.refused("resume", "request_not_found", "b", session=p.session, index=1)
        await other.refused("resume", "invalid_value", session=p.session, index=0)
        await other.refused("resume", "invalid_value", session=p.session, index=3)
        await other.refused("resume", "missing_field", session=p.session)
        await other.generate()
        await other.refused("resume", "duplicate_id", session=p.session, index=1)
        await p.generate("plain", resumable=False)
        await p.refused("ack", "not_resumable", "plain", index=1)
        await p.send("ack", "nobody", index=1)
        sink.done(completion())
        assert (await p.read())["type"] == "done"


@on_both_loops
async def test_what_is_kept_is_what_the_streamer_sees() -> None:
    async with world() as w, peer(w) as p:
        _, sink = await p.generate()
        for _ in range(3):
            sink.delta("x" * 1000, 1)
            await p.read()
        assert 3000 < sink.buffered_bytes() < 3300, "read, but not acknowledged"
        await p.send("ack", index=2)
        await until(lambda: sink.buffered_bytes() < 1100)
        await lost(w, p)
        sink.delta("x" * 1000, 1)
        assert sink.buffered_bytes() > 2000
        sink.done(completion())


@on_both_loops
async def test_too_many_lost_sockets() -> None:
    async with world(max_lost_sockets=2) as w, peer(w) as a, peer(w) as b, peer(w) as c, peer(w) as d:
        sinks = [(await each.generate())[1] for each in (a, b, c)]
        for each in (a, b):
            await lost(w, each)
        c.lose()
        assert (await w.engine.cancelled()).request_id == 0, "the one lost first"
        await d.refused("resume", "request_not_found", session=a.session, index=0)
        await d.resume(b.session, 0)
        for sink in sinks:
            sink.done(completion())


@on_both_loops
async def test_grants() -> None:
    async with world() as w, peer(w) as p:
        _, sink = await p.generate(credits=3)
        assert [each.credits for each in w.engine.opens._control] == [3]
        await p.send("grant", tokens=5)
        async with asyncio.timeout(5):
            assert await w.engine.grants.recv_control() == [Grant(0, 5)]
        await p.refused("grant", "invalid_value", tokens=0)
        sink.done(completion())
        assert (await p.read())["type"] == "done"
        await p.send("grant", tokens=5)  # it crossed the end
        await p.send("ping")
        assert (await p.read())["type"] == "pong" and not w.engine.grants._control


@on_both_loops
async def test_resume_can_be_off() -> None:
    async with world(resume_s=0) as w, peer(w) as p:
        assert p.hello["limits"]["resume_s"] == 0
        await p.refused("generate", "resume_off", prompt="x", resumable=True)


@on_both_loops
async def test_stop_gives_up_those_that_are_away() -> None:
    async with world() as w, peer(w) as p:
        await p.generate()
        await lost(w, p)
        w.inbox.close()
        await w.stage.stop()
        assert door(w).sessions.num_lost == 0 and not door(w).sessions._expiries


def keys_file(folder: Path, *names: str) -> str:
    file = folder / "keys.toml"
    file.write_text("".join(f'[{name}]\nsha256 = "{fingerprint(f"sk-{name}")}"\n' for name in names))
    return str(file)


def test_a_key_as_subprotocol(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(keys_file=keys_file(tmp_path, "ann", "bob")) as w:
            url = w.url("/v1/stream")
            ann, bob = (V1, "stageline.key.sk-ann"), (V1, "stageline.key.sk-bob")
            async with w.client.ws_connect(url, protocols=ann) as socket:
                assert socket.protocol == V1
                p = Peer(w, socket, await socket.receive_json())
                request, sink = await p.generate()
                assert request.terms.tenant == "ann"
                await lost(w, p)
            async with w.client.ws_connect(url, protocols=bob) as socket:
                other = Peer(w, socket, await socket.receive_json())
                await other.refused("resume", "request_not_found", session=p.session, index=0)
            async with w.client.ws_connect(url, protocols=ann) as socket:
                again = Peer(w, socket, await socket.receive_json())
                await again.resume(p.session, 0)
                sink.done(completion())
                assert (await again.read())["type"] == "done"
            for protocols, code in (((V1,), b"no_api_key"), ((V1, "stageline.key.x"), b"invalid_api_key")):
                async with w.client.ws_connect(url, protocols=protocols) as socket:
                    message = await socket.receive()
                    assert (message.data, message.extra) == (1008, code.decode())
            await w.error(
                w.client.get(w.url("/v1/models"), headers={"Sec-WebSocket-Protocol": ann[1]}),
                401,
                "no_api_key",
            )

    asyncio.run(main())


def test_a_subprotocol_is_never_logged(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """aiohttp's own handshake logs what is offered where nothing of it is known."""

    async def main() -> None:
        async with world(keys_file=keys_file(tmp_path, "ann"), access_log=True) as w:
            url = w.url("/v1/stream")
            for offered in ("stageline.key.sk-ann", "stageline.key.sk-ann, other", "stageline.key.wrong"):
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await w.client.ws_connect(url, headers={"Sec-WebSocket-Protocol": offered})
                assert refused.value.status in (400, 401)
            async with w.client.ws_connect(url, protocols=(V1, "stageline.key.sk-ann")) as socket:
                assert (await socket.receive_json())["type"] == "hello"
                for headers in (socket._response.headers.items(), socket._response.raw_headers):
                    assert "sk-ann" not in repr(headers)
            logged = repr(w.log.calls)
            assert "access" in logged and "sk-ann" not in logged and "wrong" not in logged

    with structlog.testing.capture_logs():
        asyncio.run(main())
    assert "sk-ann" not in "".join(capfd.readouterr())


@on_both_loops
async def test_a_draining_server_says_try_again_later() -> None:
    async with world() as w:
        w.inbox.close()
        async with w.client.ws_connect(w.url("/v1/stream"), protocols=(V1,)) as socket:
            message = await socket.receive()
            assert (message.data, message.extra) == (1013, "draining")
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await w.client.ws_connect(w.url("/v1/stream"))
        assert refused.value.status == 503


@pytest.mark.parametrize(("planned", "code"), [(True, 1001), (False, 1011)])
def test_the_servers_goodbye_says_why(planned: bool, code: int) -> None:
    async def main() -> None:
        async with world() as w, peer(w) as p:
            if planned:
                w.inbox.close()
            closing = asyncio.ensure_future(p.socket.receive())
            await w.stage.stop()
            assert (await closing).data == code

    asyncio.run(main())
