"""A server on a real socket, in a thread, that answers as the tests tell it."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

CHROME_TRACE = b'{"traceEvents":[{"ph":"M"},{"ph":"X"}]}'


class FakeServer:
    """Echoes the last message word by word. `frames` has what clients sent.

    Prompts with a meaning: "hang" sends one word and waits for a cancel; "refuse" is refused;
    "die" closes the socket in the middle; "bell" sends control characters.
    """

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.queries: list[str] = []
        self.url = ""
        self._started = threading.Event()
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/stream", self._stream)
        app.router.add_get("/debug/trace", self._trace)
        app.router.add_get("/other/debug/trace", self._other)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        self.url = f"http://{host}:{port}"
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _trace(self, request: web.Request) -> web.Response:
        self.queries.append(request.query_string)
        if "3600" in request.query_string:
            return web.json_response({"error": {"message": "last_s is wrong"}}, status=400)
        return web.Response(body=CHROME_TRACE)

    async def _other(self, _: web.Request) -> web.Response:
        return web.Response(text="<html>not a trace</html>")

    async def _stream(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            frame = message.json()
            self.frames.append(frame)
            await self._reply(socket, frame)
        return socket

    async def _reply(self, socket: web.WebSocketResponse, frame: dict[str, Any]) -> None:
        if frame["type"] == "cancel":
            await _send(socket, frame, "done", finish_reason="cancelled", usage={})
            return
        prompt = frame["messages"][-1]["content"]
        if prompt == "refuse":
            error = {
                "message": "top_p must be at most 1, got 2.0",
                "type": "x",
                "param": "top_p",
                "code": None,
            }
            await _send(socket, frame, "error", error=error)
            return
        await _send(socket, frame, "accepted")
        if prompt == "hang":
            await _send(socket, frame, "delta", text="once", num_tokens=1)
        elif prompt == "die":
            await _send(socket, frame, "delta", text="half", num_tokens=1)
            await socket.close(code=1011)
        else:
            text = "ding\x07\x1b[2Jdong" if prompt == "bell" else prompt
            for word in text.split(" "):
                await _send(socket, frame, "delta", text=f"<{word}>", num_tokens=1)
            await _send(socket, frame, "done", finish_reason="stop", usage={"completion_tokens": 2})


async def _send(socket: web.WebSocketResponse, frame: dict[str, Any], kind: str, **fields: Any) -> None:
    await socket.send_json({"type": kind, "id": frame["id"], **fields})


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    fake.start()
    yield fake
    fake.stop()
