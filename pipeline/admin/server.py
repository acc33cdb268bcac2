"""The admin server: an HTTP port of its own, beside the pipeline and open before and after it."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiohttp import web

from pipeline.admin.api import Api
from pipeline.admin.guard import WILDCARDS, guard
from pipeline.admin.recordings import RecordingsApi
from pipeline.admin.stages import StagesApi
from pipeline.assemble import Pipeline
from pipeline.checkpoint.card import ModelCard
from pipeline.config import AdminConfig, Config
from pipeline.errors import ConfigError
from pipeline.stages.ingress.replies import quiet_logger, replies
from pipeline.stages.ingress.site import Site

_WRITE_TIMEOUT_S = 5.0
_KEEPALIVE_S = 15.0
_MAX_CONNECTIONS = 256
_GOODBYE_S = 0.5


class AdminServer:
    """start() opens the port; stop() closes it and every connection."""

    def __init__(self, pipeline: Pipeline, config: AdminConfig, card: ModelCard) -> None:
        self.api = Api(pipeline, card)
        self.stages = StagesApi(pipeline, is_allowed=config.allow_swap)
        self.recordings = RecordingsApi(pipeline.recordings)
        self._ingress: Any = pipeline.stages["ingress"][0]
        self._config = config
        self._log = structlog.get_logger()
        self._runner: web.AppRunner | None = None
        self.port = 0
        """The port that is open, once started."""

    @property
    def url(self) -> str:
        """As a browser on this machine can use it."""
        return f"http://{in_url(self._config.host)}:{self.port}"

    async def start(self) -> None:
        """Raises ConfigError if the port cannot be opened."""
        options: dict[str, Any] = {
            "keepalive_timeout": _KEEPALIVE_S,
            "access_log": None,
            "logger": quiet_logger(self._log),
            "lingering_time": _GOODBYE_S,
        }
        runner = web.AppRunner(
            self._application(),
            handler_cancellation=True,  # a page that is closed ends its feed at once
            shutdown_timeout=_GOODBYE_S,
            **options,
        )
        await runner.setup()
        port = self.wanted_port
        site = Site(runner, self._config.host, port, _MAX_CONNECTIONS, options)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise _cannot_listen(self._config.host, port, error) from error
        self._runner, self.port = runner, site.port
        self.stages.start(self.port)

    def door_is_open(self) -> None:
        """The pipeline is ready: the page may say so, and use the door, if there is one."""
        options = self._ingress.options
        self.api.ready((options.host, self._ingress.port) if hasattr(options, "port") else None)

    async def stop(self) -> None:
        """Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self.stages.stop()
            self.api.close()
            await runner.cleanup()

    @property
    def wanted_port(self) -> int:
        """The one of the configuration; 0: any free one."""
        if self._config.port is not None:
            return self._config.port
        door_port: int = getattr(self._ingress.options, "port", 0)
        return door_port + 1 if 0 < door_port < 65_535 else 0

    def _application(self) -> web.Application:
        api = self.api
        app = web.Application(
            middlewares=[replies(self._log, _WRITE_TIMEOUT_S, 1), guard(self._config.host)],
        )
        app.router.add_get("/", api.index)
        app.router.add_get("/static/{name}", api.static)
        app.router.add_get("/api/live", api.live, allow_head=False)
        app.router.add_get("/api/evidence", api.evidence)
        app.router.add_get("/api/diagnosis", api.diagnosis)
        app.router.add_get("/api/kv/events", api.kv.events, allow_head=False)
        app.router.add_get("/api/kv/root", api.kv.root)
        app.router.add_delete("/api/kv/pins", api.kv.clear_pins)
        app.router.add_get("/api/stages", self.stages.list)
        app.router.add_post("/api/stages/{name}/swap", self.stages.swap)
        app.router.add_get("/api/recordings", self.recordings.list)
        app.router.add_post("/api/recordings", self.recordings.begin)
        app.router.add_post("/api/recordings/{id}/stop", self.recordings.end)
        app.router.add_get("/api/recordings/{id}", self.recordings.file, allow_head=False)
        app.router.add_delete("/api/recordings/{id}", self.recordings.remove)
        app.router.add_get("/metrics", api.metrics)
        app.router.add_get("/debug/trace", api.trace)
        app.on_response_prepare.append(api.protect)
        return app


@asynccontextmanager
async def beside(pipeline: Pipeline, config: Config, card: ModelCard) -> AsyncIterator[AdminServer | None]:
    """The admin server while the pipeline runs; None where config says so. Raises ConfigError."""
    if not config.admin.enabled:
        yield None
        return
    admin = AdminServer(pipeline, config.admin, card)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.stop()


def in_url(host: str) -> str:
    """How a client on this machine names, in a URL, a server that listens on `host`."""
    if host in WILDCARDS:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    hint = ""
    if error.errno == errno.EADDRINUSE:
        hint = (
            " Is another Stageline running? Another --port moves both ports, unless admin.port is set;"
            " --admin-port moves this one (0: any free one), --admin-port off does without it."
        )
    return ConfigError(
        f"admin: cannot listen on admin.host = {host!r}, admin.port = {port}: {error.strerror}.{hint}"
    )
