"""What the admin port answers."""

import asyncio
from time import perf_counter_ns

import msgspec
from aiohttp import web

from pipeline.admin.feed import Feed
from pipeline.admin.guard import WILDCARDS, headers, host_of
from pipeline.admin.kv import KvApi
from pipeline.admin.live import TICK_S, Live
from pipeline.admin.page_files import INDEX, PageFiles
from pipeline.admin.views import About, link_view
from pipeline.assemble import Pipeline
from pipeline.checkpoint.card import ModelCard
from pipeline.doctor import diagnose
from pipeline.errors import RequestError
from pipeline.stages.ingress.about import window_s
from pipeline.stages.ingress.replies import json_bytes
from pipeline.telemetry import CONTENT_TYPE, Evidence
from pipeline.telemetry.perfetto import Recorded, chrome_trace

MAX_PAGES = 32
"""That are open at the same time."""

_encode = msgspec.json.Encoder().encode


class Api:
    """Handlers. All of them only read."""

    def __init__(self, pipeline: Pipeline, card: ModelCard) -> None:
        self._pipeline = pipeline
        self._card = card
        self._page = PageFiles()
        self._live = Live(pipeline)
        self.feed = Feed(self._reading, TICK_S)
        self.kv = KvApi(pipeline)
        self._num_pages = 0
        self._judging = asyncio.Lock()
        self._door: tuple[str, int] | None = None

    def ready(self, door: tuple[str, int] | None) -> None:
        """The pipeline is. `door`: host and port at which the page's playground finds the websocket."""
        self._door = door
        self._live.is_ready = True

    def close(self) -> None:
        self.feed.close()
        self.kv.close()

    async def protect(self, request: web.Request, response: web.StreamResponse) -> None:
        """Put the headers of guard on every answer."""
        response.headers.update(headers(self._door_url(request)))

    async def index(self, request: web.Request) -> web.Response:
        return self._page.answer(INDEX)

    async def static(self, request: web.Request) -> web.Response:
        return self._page.answer(request.match_info["name"])

    async def live(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: `about` and `backlog` once, then a `snapshot` every TICK_S."""
        if self._num_pages >= MAX_PAGES:
            raise RequestError(f"{MAX_PAGES} pages are open: close one.", status=503, code="too_many_pages")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self._num_pages += 1
        try:
            await response.prepare(request)
            await response.write(_event(b"about", _encode(self._about(request))))
            await response.write(_event(b"backlog", _encode(self._live.backlog())))
            while True:
                await response.write(await self.feed.next())
        finally:
            self._num_pages -= 1

    async def evidence(self, request: web.Request) -> web.Response:
        """Evidence of the last `last_s` seconds, for `stageline doctor`."""
        return json_bytes(await asyncio.to_thread(_encode, self._evidence(request)))

    async def diagnosis(self, request: web.Request) -> web.Response:
        """The doctor's, of the last `last_s` seconds; it judges off the loop, one window at a time."""
        async with self._judging:
            diagnosis = await asyncio.to_thread(diagnose, self._evidence(request))
        return json_bytes(_encode(diagnosis))

    async def metrics(self, request: web.Request) -> web.Response:
        """As the door's."""
        body = self._pipeline.telemetry.render()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def trace(self, request: web.Request) -> web.Response:
        """As the door's: the trace of the last `last_s` seconds, for ui.perfetto.dev."""
        since_ns = perf_counter_ns() - int(_last_s(request) * 1e9)
        pipeline = self._pipeline
        recorded = Recorded.of(pipeline.trace, pipeline.telemetry.journal, since_ns)
        return json_bytes(await asyncio.to_thread(chrome_trace, recorded))

    def _evidence(self, request: web.Request) -> Evidence:
        try:
            return self._pipeline.sampler.evidence(_last_s(request))
        except RuntimeError as error:
            raise RequestError("The pipeline is not ready yet.", status=503, code="not_ready") from error

    def _reading(self) -> bytes:
        return _event(b"snapshot", _encode(self._live.tick()))

    def _about(self, request: web.Request) -> About:
        plan = self._pipeline.graph
        return About(
            stages=plan.names,
            links=tuple(map(link_view, plan.links)),
            model=self._card.name,
            door=self._door_url(request),
            has_door=hasattr(self._pipeline.stages["ingress"][0].options, "port"),
            has_chat=self._card.chat_template is not None,
        )

    def _door_url(self, request: web.Request) -> str:
        """The door as the page's browser reaches it; empty before it is open.

        Where the door listens on every address that is the name which the browser has used for us.
        """
        if self._door is None:
            return ""
        host, port = self._door
        if host in WILDCARDS:
            host = host_of(request.headers.get("Host", ""))
        return f"ws://{f'[{host}]' if ':' in host else host}:{port}"


def _last_s(request: web.Request) -> float:
    return window_s(request.query.get("last_s", "60"))


def _event(name: bytes, data: bytes) -> bytes:
    """WHATWG HTML 9.2; JSON has no line breaks of its own."""
    return b"event: %b\ndata: %b\n\n" % (name, data)
