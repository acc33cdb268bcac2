"""An Ingress on a real port, and an engine that a test plays by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import structlog
import uvloop

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.core.gate import Gate
from pipeline.messages import (
    SEGMENTS,
    Cancel,
    ClientSink,
    Completion,
    FinishReason,
    GenerateRequest,
    Grant,
    Open,
    Timings,
    TokenCall,
)
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import StageContext
from pipeline.runtime.trace import Trace
from pipeline.stages.ingress import Ingress, IngressOptions
from pipeline.telemetry import Telemetry

MODEL = "fake"
PATIENCE_S = 5.0


def on_both_loops(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on asyncio's loop and on uvloop: their transports differ."""

    @pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
    def on_loop(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        run(test())

    on_loop.__doc__ = test.__doc__
    return on_loop


def completion(
    reason: FinishReason = FinishReason.STOP, num_prompt: int = 3, num_output: int = 2
) -> Completion:
    segments_ns = tuple(range(1_000_001, 1_000_001 + len(SEGMENTS)))
    return Completion(reason, num_prompt, num_output, Timings(segments_ns, sum(segments_ns), 2_000_000))


class Engine:
    """The stages behind ingress, as a test moves them."""

    def __init__(self, queue_bound: int) -> None:
        self.requests: Inbox[GenerateRequest] = Inbox(queue_bound)
        self.opens: Inbox[Open] = Inbox(1)
        self.cancels: Inbox[Cancel] = Inbox(1)
        self.grants: Inbox[Grant] = Inbox(1)

    async def next(self) -> tuple[GenerateRequest, ClientSink]:
        """The next request, and its sink, which must have been opened in the same tick."""
        async with asyncio.timeout(PATIENCE_S):
            request = (await self.requests.recv_many(1))[0]
            opened = self._sinks()
        return request, opened[request.request_id]

    def _sinks(self) -> dict[int, ClientSink]:
        waiting = list(self.opens._control)
        return {message.request_id: message.sink for message in waiting}

    async def cancelled(self) -> Cancel:
        """The one cancel that is due."""
        async with asyncio.timeout(PATIENCE_S):
            cancels = await self.cancels.recv_control()
        assert len(cancels) == 1
        return cancels[0]

    def num_cancels(self) -> int:
        return len(self.cancels._control)

    async def answer(
        self, texts: Sequence[str] = ("Hel", "lo"), ending: Completion | None = None
    ) -> GenerateRequest:
        """Answer the next request in full."""
        request, sink = await self.next()
        for text in texts:
            sink.delta(text, 1)
            await asyncio.sleep(0)
        sink.done(ending or completion())
        return request


class World:
    def __init__(self, queue_bound: int, options: dict[str, Any]) -> None:
        self.engine = Engine(queue_bound)
        self.inbox: Inbox[Any] = Inbox(1)
        self.telemetry = Telemetry()
        self.gate = Gate()
        self.log = structlog.testing.CapturingLogger()
        self.trace = Trace()
        outlets = {
            GenerateRequest: self.engine.requests,
            TokenCall: self.engine.requests,
            Open: self.engine.opens,
            Cancel: self.engine.cancels,
            Grant: self.engine.grants,
        }
        self.ctx = StageContext(
            "ingress",
            self.inbox,
            outlets,
            {ModelCard: byte_card(2048), Telemetry: self.telemetry, Gate: self.gate},
            self.trace,
            self.log,
        )
        self.stage = Ingress(self.ctx, IngressOptions(port=0, **options))
        self.telemetry.watch(self.stage.gauges)
        self.client: aiohttp.ClientSession

    @property
    def port(self) -> int:
        return self.stage.port

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def post(self, path: str, body: Any, **more: Any) -> Any:
        return self.client.post(self.url(path), json=body, **more)

    def get(self, path: str) -> Any:
        return self.client.get(self.url(path))

    async def error(self, response: Any, status: int, code: str) -> dict[str, Any]:
        """Check that `response` is an OpenAI error of that kind."""
        async with response as answer:
            body = await answer.json()
            assert (answer.status, body["error"]["code"]) == (status, code)
            assert set(body["error"]) == {"message", "type", "param", "code"}
            return {**body["error"], "headers": answer.headers}


@asynccontextmanager
async def world(queue_bound: int = 64, **options: Any) -> AsyncIterator[World]:
    """A started ingress and a client; at the end nothing of either is left."""
    before = asyncio.all_tasks()
    made = World(queue_bound, options)
    await made.stage.start()
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as client:
            made.client = client
            yield made
    finally:
        await made.stage.stop()
    assert made.stage.num_live == 0
    await until(lambda: asyncio.all_tasks() == before)


async def until(condition: Any, timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the conditions are of several objects
            await asyncio.sleep(0.005)


async def events(response: aiohttp.ClientResponse) -> list[str]:
    """The data of all server-sent events, and the comments as they are."""
    text = (await response.read()).decode()
    assert text.endswith("\n\n")
    return [part.removeprefix("data: ") for part in text.removesuffix("\n\n").split("\n\n")]
