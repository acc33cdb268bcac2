"""A small OpenAI-shaped server with scripted answers, over real sockets.

A script is what one answer does: numbers wait that many seconds, bytes go out as they are (SSE),
dicts go out as WebSocket frames with the request's id, DROP cuts the connection.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

DROP = object()
Script = list[Any]
BOS_TOKENS = 1


def num_tokens(prompt: str) -> int:
    """The fake tokenizer: pieces of at most four characters of each word, and a BOS token."""
    return BOS_TOKENS + len(re.findall(r"\S{1,4}", prompt))


def data(body: dict[str, Any] | str) -> bytes:
    return b"data: " + (body if isinstance(body, str) else json.dumps(body)).encode() + b"\n\n"


def text(piece: str, finish: str | None = None) -> bytes:
    return data({"choices": [{"index": 0, "text": piece, "finish_reason": finish}], "usage": None})


def usage(prompt: int, completion: int) -> bytes:
    return data({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


DONE = data("[DONE]")


def delta(piece: str, tokens: int = 1) -> dict[str, Any]:
    return {"type": "delta", "text": piece, "tokens": tokens}


def done(prompt: int, completion: int, finish: str = "length") -> dict[str, Any]:
    return {
        "type": "done",
        "finish_reason": finish,
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion},
    }


class FakeServer:
    """`script` makes each answer; `requests` and `cancelled` are what was asked, `arrivals` as it comes.

    With `about` and `metrics` it answers `GET /` and `GET /metrics`. `written` has the `clock` time at which
    each frame of an answer went out, answer by answer.
    """

    def __init__(self, script: Callable[[dict[str, Any]], Script]) -> None:
        self.script = script
        self.models = ["fake"]
        self.status: tuple[int, str] | None = None
        self.requests: list[dict[str, Any]] = []
        self.arrivals: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.cancelled: list[str] = []
        self.gone: list[dict[str, Any]] = []
        """Requests over SSE whose client closed the connection."""
        self.doors: list[str] = []
        self.about: dict[str, Any] | None = None
        self.metrics: str | None = None
        self.clock: Callable[[], float] = time.perf_counter
        self.written: list[list[float]] = []
        self.headers: dict[str, str] = {}
        """Of a refusal."""
        self.num_sockets = 0
        self.url = ""

    def _asked(self, request: dict[str, Any]) -> None:
        self.requests.append(request)
        self.arrivals.put_nowait(request)

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.models]})

    async def index(self, request: web.Request) -> web.Response:
        if self.about is None:
            raise web.HTTPNotFound
        return web.json_response(self.about)

    async def show_metrics(self, request: web.Request) -> web.Response:
        if self.metrics is None:
            raise web.HTTPNotFound
        return web.Response(text=self.metrics)

    def _writes(self) -> list[float]:
        self.written.append([])
        return self.written[-1]

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self._asked(body)
        self.doors.append(request.path)
        if self.status is not None:
            status, message = self.status
            return web.json_response({"error": {"message": message}}, status=status, headers=self.headers)
        try:
            return await self._events(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.gone.append(body)
            raise

    async def _events(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        written = self._writes()
        for step in self.script(body):
            if step is DROP:
                request.transport.abort()
            elif isinstance(step, bytes):
                written.append(self.clock())
                await response.write(step)
            else:
                await asyncio.sleep(step)
        return response

    async def stream(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.num_sockets += 1
        async with asyncio.TaskGroup() as answers:
            async for message in socket:
                frame = json.loads(message.data)
                if frame["type"] == "cancel":
                    self.cancelled.append(frame["id"])
                else:
                    self._asked(frame)
                    answers.create_task(self._answer(socket, frame))
        return socket

    async def _answer(self, socket: web.WebSocketResponse, frame: dict[str, Any]) -> None:
        await socket.send_json({"type": "accepted", "id": frame["id"]})
        written = self._writes()
        for step in self.script(frame):
            if step is DROP:
                await socket.close(code=1011)
            elif isinstance(step, dict):
                written.append(self.clock())
                if not socket.closed:
                    await socket.send_json({"id": frame["id"]} | step)
            else:
                await asyncio.sleep(step)


@asynccontextmanager
async def serve(
    script: Callable[[dict[str, Any]], Script], server: FakeServer | None = None
) -> AsyncIterator[FakeServer]:
    """A running server; `url` says where. `server`: one of a class of your own."""
    server = server or FakeServer(script)
    app = web.Application(client_max_size=2**26)
    app.router.add_get("/", server.index)
    app.router.add_get("/metrics", server.show_metrics)
    app.router.add_get("/v1/models", server.list_models)
    app.router.add_post("/v1/completions", server.completions)
    app.router.add_post("/v1/chat/completions", server.completions)
    app.router.add_get("/v1/stream", server.stream)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
