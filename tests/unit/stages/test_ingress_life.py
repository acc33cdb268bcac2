"""Start, readiness, health, drain and stop; and what the server says of itself."""

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from pipeline.errors import ConfigError
from pipeline.messages import FinishReason
from pipeline.stages.ingress import Ingress, IngressOptions
from tests.unit.stages.ingress_world import MODEL, completion, events, on_both_loops, until, world

STREAM = {"prompt": "Hi", "stream": True}


@on_both_loops
async def test_about() -> None:
    async with world() as w:
        async with w.get("/") as response:
            assert (await response.json())["model"] == MODEL
        async with w.get("/v1/models") as response:
            (model,) = (await response.json())["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == (MODEL, "model", 2048)
        async with w.get(f"/v1/models/{MODEL}") as response:
            assert await response.json() == model
        await w.error(w.get("/v1/models/org/other"), 404, "model_not_found")
        async with w.get("/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert "stageline_live_requests 0.0" in await response.text()
        async with w.get("/ready") as response:
            assert response.status == 200


@on_both_loops
async def test_trace() -> None:
    async with world() as w:
        async with asyncio.TaskGroup() as group:
            group.create_task(w.engine.answer())
            async with w.post("/v1/completions", {"prompt": "a"}):
                pass
        async with w.get("/debug/trace?last_s=5") as response:
            assert response.status == 200
            assert msgspec.json.decode(await response.read())["traceEvents"]
        for bad in ("0", "-1", "nan", "x", "1e9"):
            await w.error(w.get(f"/debug/trace?last_s={bad}"), 400, "invalid_value")


@on_both_loops
async def test_health_sends_one_token_for_all_who_ask() -> None:
    async with world() as w:
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(_status(w, "/health")) for _ in range(5)]
            await asyncio.sleep(0.1)
            request = await w.engine.answer(["x"])
        assert [task.result() for task in asking] == [200] * 5
        assert request.sampling.max_tokens == 1
        assert w.engine.requests.stats().sent == 1
        async with asyncio.TaskGroup() as group:
            again = group.create_task(_status(w, "/health"))
            await w.engine.answer(["x"])
        assert again.result() == 200


@on_both_loops
async def test_health_of_a_pipeline_that_is_stuck_or_fails() -> None:
    async with world(health_timeout_s=0.2) as w:
        await w.error(w.get("/health"), 503, "unhealthy")
        assert (await w.engine.cancelled()).request_id == 0
        _, stuck = await w.engine.next()
        stuck.done(completion(FinishReason.CANCELLED))
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(_status(w, "/health"))
            _, sink = await w.engine.next()
            sink.done(completion(FinishReason.ERROR))
        assert asking.result() == 503


@on_both_loops
async def test_load_is_not_sickness() -> None:
    async with world(queue_bound=1, health_timeout_s=0.3) as w:
        posting = asyncio.ensure_future(w.post("/v1/completions", {"prompt": "a"}).__aenter__())
        _, sink = await w.engine.next()
        filling = asyncio.ensure_future(w.post("/v1/completions", {"prompt": "b"}).__aenter__())
        await until(lambda: w.stage.num_live == 2)
        assert await _status(w, "/health") == 503
        asking = asyncio.ensure_future(_status(w, "/health"))
        await asyncio.sleep(0.1)
        sink.delta("moves", 1)
        assert await asking == 200
        sink.done(completion())
        await w.engine.answer()
        for response in (await posting, await filling):
            response.close()


async def _status(w: Any, path: str) -> int:
    async with w.get(path) as response:
        return int(response.status)


@on_both_loops
async def test_drain() -> None:
    """Trap 69: new requests are refused at once, what is live goes on."""
    async with world() as w:
        running = asyncio.ensure_future(w.stage.run())
        socket = await w.client.ws_connect(w.url("/v1/stream"))
        posting = asyncio.ensure_future(w.post("/v1/completions", STREAM).__aenter__())
        _, sink = await w.engine.next()
        sink.delta("a", 1)
        response = await posting
        w.inbox.close()
        async with asyncio.timeout(1):
            await running
        w.engine.requests.close()
        error = await w.error(w.post("/v1/completions", {"prompt": "x"}), 503, "draining")
        assert error["headers"]["Retry-After"] == "1"
        for path in ("/ready", "/health"):
            await w.error(w.get(path), 503, "draining")
        await socket.send_json({"type": "generate", "id": "a", "prompt": "x"})
        assert (await socket.receive_json())["error"]["code"] == "draining"
        sink.delta("b", 1)
        sink.done(completion())
        assert len(await events(response)) == 4
        closing = asyncio.ensure_future(socket.receive())
        await w.stage.stop()
        assert (await closing).data == aiohttp.WSCloseCode.GOING_AWAY


@on_both_loops
async def test_a_closed_pipeline_is_draining_too() -> None:
    async with world() as w:
        w.engine.requests.close()
        await w.error(w.post("/v1/completions", {"prompt": "x"}), 503, "draining")
        assert w.stage.num_live == 0


@pytest.mark.parametrize(
    ("planned", "status", "code"), [(True, 503, "shutting_down"), (False, 500, "server_error")]
)
def test_stop_answers_what_is_live(planned: bool, status: int, code: str) -> None:
    async def main() -> None:
        async with world() as w:
            socket = await w.client.ws_connect(w.url("/v1/stream"))
            await socket.send_json({"type": "generate", "id": "a", "prompt": "x"})
            await w.engine.next()
            whole = asyncio.ensure_future(w.post("/v1/completions", {"prompt": "x"}).__aenter__())
            await w.engine.next()
            held = asyncio.ensure_future(w.post("/v1/completions", STREAM).__aenter__())
            await w.engine.next()
            begun = asyncio.ensure_future(w.post("/v1/completions", STREAM).__aenter__())
            _, sink = await w.engine.next()
            sink.delta("a", 1)
            response = await begun
            if planned:
                w.inbox.close()
            reading = asyncio.ensure_future(_codes(socket))
            async with asyncio.timeout(2):
                await w.stage.stop()
            await w.error(await whole, status, code)
            await w.error(await held, status, code)
            *_, error, done = await events(response)
            assert msgspec.json.decode(error)["error"]["code"] == code and done == "[DONE]"
            assert await reading == ["accepted", code, 1001 if planned else 1011]
            await w.stage.stop()

    asyncio.run(main())


async def _codes(socket: aiohttp.ClientWebSocketResponse) -> list[Any]:
    got: list[Any] = []
    while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
        frame = message.json()
        got.append(frame["error"]["code"] if frame["type"] == "error" else frame["type"])
    return [*got, message.data]


@on_both_loops
async def test_stop_does_not_wait_for_a_client_that_says_nothing() -> None:
    async with world() as w:
        reader, writer = await asyncio.open_connection("127.0.0.1", w.port)
        writer.write(
            b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert b"101" in await reader.readline()
        async with asyncio.timeout(4):
            await w.stage.stop()
        writer.close()


@on_both_loops
async def test_a_port_that_is_taken_is_a_config_error() -> None:
    async with world() as w:
        second = Ingress(w.ctx, IngressOptions(port=w.port))
        with pytest.raises(ConfigError, match=f"port = {w.port}"):
            await second.start()
        await second.stop()


def test_stop_without_start() -> None:
    async def main() -> None:
        async with world() as w:
            await Ingress(w.ctx, IngressOptions(port=0)).stop()

    asyncio.run(main())
