"""What the server says of itself: models, readiness, metrics, trace."""

import asyncio
import time
from importlib.metadata import PackageNotFoundError, version

from aiohttp import web

from pipeline.core.wire import Limits
from pipeline.core.wire.openapi import document
from pipeline.errors import RequestError
from pipeline.runtime.stage import StageContext
from pipeline.stages.ingress.health import Health
from pipeline.stages.ingress.intake import DRAINING, Intake
from pipeline.stages.ingress.replies import json_bytes, json_response
from pipeline.telemetry import CONTENT_TYPE, Telemetry
from pipeline.telemetry.perfetto import Recorded, chrome_trace

ENDPOINTS = (
    "POST /v1/completions",
    "POST /v1/chat/completions",
    "POST /v1/responses",
    "POST /v1/embeddings",
    "GET /v1/requests/{id}",
    "DELETE /v1/requests/{id}",
    "POST /tokenize",
    "POST /detokenize",
    "GET /v1/stream (websocket)",
    "GET /v1/models",
    "GET /v1/models/{id}",
    "GET /openapi.json",
    "GET /health",
    "GET /ready",
    "GET /metrics",
    "GET /debug/trace?last_s=30",
)
_MAX_WINDOW_S = 3600.0


class About:
    """Handlers that read, and generate nothing but the health probe's one token."""

    def __init__(self, ctx: StageContext, intake: Intake, limits: Limits, health: Health) -> None:
        self._ctx = ctx
        self._intake = intake
        self._health = health
        self._telemetry = ctx.resource(Telemetry)
        self._openapi = document(limits, _version())
        self._model = {
            "id": limits.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "stageline",
            "max_model_len": limits.max_model_len,
        }

    async def index(self, request: web.Request) -> web.Response:
        about = {
            "name": "stageline",
            "version": _version(),
            "model": self._model["id"],
            "endpoints": ENDPOINTS,
        }
        return json_response(about)

    async def openapi(self, request: web.Request) -> web.Response:
        return json_response(self._openapi)

    async def models(self, request: web.Request) -> web.Response:
        return json_response({"object": "list", "data": [self._model]})

    async def model(self, request: web.Request) -> web.Response:
        if request.match_info["id"] != self._model["id"]:
            raise RequestError(
                "This server does not have that model; GET /v1/models lists what it has.",
                status=404,
                param="model",
                code="model_not_found",
            )
        return json_response(self._model)

    async def health(self, request: web.Request) -> web.Response:
        """200 if a token came through the whole pipeline in time; else, and while draining, 503."""
        if self._intake.is_draining:
            raise DRAINING
        if await self._health.check():
            return json_response({"status": "ok"})
        raise RequestError("The pipeline did not answer in time.", status=503, code="unhealthy")

    async def ready(self, request: web.Request) -> web.Response:
        """Whether to send requests here. The port is open only when all stages have started."""
        if self._intake.is_draining:
            raise DRAINING
        if fault := self._telemetry.worker.fault:
            message = f"The device is away, and is opened again: {fault}"
            raise RequestError(message, status=503, code="device_lost", retry_after_s=1)
        return json_response({"status": "ready"})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._telemetry.render(),
            headers={"Content-Type": CONTENT_TYPE},
        )

    async def trace(self, request: web.Request) -> web.Response:
        """The last `last_s` seconds, for ui.perfetto.dev. Formatted off the loop."""
        last_s = window_s(request.query.get("last_s", "30"))
        since_ns = self._ctx.clock() - int(last_s * 1e9)
        recorded = Recorded.of(self._ctx.trace, self._telemetry.journal, since_ns)
        return json_bytes(await asyncio.to_thread(chrome_trace, recorded))


def window_s(text: str) -> float:
    """The `last_s` of a query: how far back an answer goes. Raises RequestError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= _MAX_WINDOW_S:
        raise RequestError(
            f"'last_s' must be a number above 0 and up to {_MAX_WINDOW_S:g}.",
            param="last_s",
            code="invalid_value",
        )
    return value


def _version() -> str:
    try:
        return version("stageline")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
