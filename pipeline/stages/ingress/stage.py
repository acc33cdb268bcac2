"""The ingress stage: opens the port last, closes it last, and in between answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Never

from aiohttp import WSCloseCode, web

from pipeline.checkpoint.card import ModelCard
from pipeline.core.keys import KeyRing
from pipeline.core.tool_calls import syntax_of
from pipeline.core.wire import SERVER_ERROR, ImageLimits, Limits
from pipeline.errors import ConfigError, RequestError
from pipeline.grammar.door import GrammarDoor
from pipeline.messages import Cancel, GenerateRequest, Grant, Open, TokenCall
from pipeline.runtime.stage import Stage, StageContext
from pipeline.stages.ingress.about import About
from pipeline.stages.ingress.access_log import access_log
from pipeline.stages.ingress.authentication import authentication, principal_of, read_keys
from pipeline.stages.ingress.cors import Cors
from pipeline.stages.ingress.embeddings import EmbeddingsDoor
from pipeline.stages.ingress.health import Health
from pipeline.stages.ingress.http import HttpDoor
from pipeline.stages.ingress.intake import Intake
from pipeline.stages.ingress.options import IngressOptions
from pipeline.stages.ingress.replies import quiet_logger, replies
from pipeline.stages.ingress.site import Site, is_loopback, tls_context
from pipeline.stages.ingress.timeline import TimelineDoor
from pipeline.stages.ingress.tokens import TokenDoor
from pipeline.stages.ingress.websocket import WebsocketDoor

SHUTTING_DOWN = RequestError(
    "The server shut down before the answer was complete.", status=503, code="shutting_down"
)
_GOODBYE_S = 1.0
"""How long stop() lets clients take their last bytes."""


class Ingress(Stage[Never, IngressOptions]):
    """Drains when its inbox is closed: new requests and /ready get 503, open streams go on until stop().

    It has no State: it holds connections, which only the handlers that serve them can go on with.
    """

    Options = IngressOptions
    takes = ()
    gives = (GenerateRequest, TokenCall, Open, Grant, Cancel)

    def __init__(self, ctx: StageContext, options: IngressOptions) -> None:
        super().__init__(ctx, options)
        self.port = options.port
        """The port that is open, once started."""
        self._intake = Intake(ctx, options.max_live_requests, options.max_live_images)
        limits = _limits(ctx.resource(ModelCard), options)
        self._keys = None if options.keys_file is None else KeyRing(read_keys(Path(options.keys_file)))
        self._cors = Cors(options.cors_origins)
        self._tls = tls_context(options.tls_cert, options.tls_key)
        self._grammars = GrammarDoor(ctx.resource(ModelCard), options.grammar_timeout_s)
        self._http = HttpDoor(self._intake, self._grammars, limits, options, ctx.clock)
        self._embeddings = EmbeddingsDoor(self._intake, limits, options, ctx.clock)
        self._timeline = TimelineDoor(ctx, self._intake, self._http.instance)
        self._tokens = TokenDoor(ctx, limits, options)
        self._websocket = WebsocketDoor(self._intake, self._grammars, limits, options, self._cors, ctx.clock)
        health = Health(self._intake, options.health_timeout_s, ctx.clock)
        self._about = About(ctx, self._intake, limits, health)
        self._runner: web.AppRunner | None = None

    @property
    def num_live(self) -> int:
        """Requests taken in and not yet ended."""
        return len(self._intake.live)

    def tenant_of(self, authorization: str | None) -> str:
        """Whose requests carry this header; empty: their `user` field says. Raises RequestError 401."""
        return principal_of(self._keys, authorization).tenant

    async def start(self) -> None:
        """Open the port. Raises ConfigError if it cannot be opened."""
        options = self.options
        protocol_options = self._protocol_options()
        self._runner = web.AppRunner(
            self._application(),
            handler_cancellation=True,  # else a client that leaves is not noticed before the answer's end
            shutdown_timeout=_GOODBYE_S,
            **protocol_options,
        )
        await self._runner.setup()
        site = Site(
            self._runner,
            options.host,
            options.port,
            options.max_connections,
            protocol_options,
            self._tls,
            handshake_timeout_s=options.keepalive_s,
        )
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"stages.ingress.options: cannot listen on host = {options.host!r}, port = {options.port}: "
                f"{error.strerror}"
            ) from error
        self.port = site.port
        if self._keys is None and not is_loopback(options.host):
            self.ctx.log.warning(
                "open_to_all", host=options.host, reason="there is no keys_file: docs/keys.md"
            )

    async def handle(self, batch: Sequence[Never]) -> None:
        """Never called: nothing is sent to ingress, its inbox only says when to drain."""

    async def stop(self) -> None:
        """Answer what is still live, close the port and every connection. A closed inbox means that this was
        planned; else the pipeline has crashed."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        is_planned = self._intake.is_draining
        self._intake.fail_all(SHUTTING_DOWN if is_planned else SERVER_ERROR)
        code = WSCloseCode.GOING_AWAY if is_planned else WSCloseCode.INTERNAL_ERROR
        await self._websocket.close_all(code, _GOODBYE_S)
        await runner.cleanup()
        await self._grammars.stop()

    def _protocol_options(self) -> dict[str, Any]:
        options = self.options
        return {
            "keepalive_timeout": options.keepalive_s,
            "access_log": None,
            "logger": quiet_logger(self.ctx.log),
            "auto_decompress": False,
            "max_line_size": options.max_header_bytes,
            "max_field_size": options.max_header_bytes,
            "max_headers": options.max_headers,
            "lingering_time": _GOODBYE_S,
        }

    def _application(self) -> web.Application:
        options, about = self.options, self._about
        public = frozenset({about.health, about.ready})
        app = web.Application(
            middlewares=[
                *([access_log(self.ctx.log)] if options.access_log else []),
                replies(self.ctx.log, options.write_timeout_s, options.retry_after_s),
                self._cors.middleware(),
                authentication(self._keys, public, frozenset({self._websocket.serve})),
            ],
            client_max_size=options.max_body_bytes,
        )
        app.on_response_prepare.append(self._cors.add_headers)
        app.router.add_post("/v1/completions", self._http.completions)
        app.router.add_post("/v1/chat/completions", self._http.chat)
        app.router.add_post("/v1/responses", self._http.responses)
        app.router.add_post("/v1/embeddings", self._embeddings.embed)
        app.router.add_get("/v1/requests/{id}", self._timeline.show)
        app.router.add_delete("/v1/requests/{id}", self._timeline.cancel)
        app.router.add_post("/tokenize", self._tokens.tokenize)
        app.router.add_post("/detokenize", self._tokens.detokenize)
        app.router.add_get("/v1/stream", self._websocket.serve, allow_head=False)
        app.router.add_get("/v1/models", about.models)
        app.router.add_get("/v1/models/{id:.+}", about.model)
        app.router.add_get("/openapi.json", about.openapi)
        app.router.add_get("/health", about.health)
        app.router.add_get("/ready", about.ready)
        app.router.add_get("/metrics", about.metrics)
        app.router.add_get("/debug/trace", about.trace)
        app.router.add_get("/", about.index)
        return app

    def gauges(self) -> dict[str, float]:
        return {
            "live_requests": self.num_live,
            "open_sockets": len(self._websocket.sockets),
            "lost_sockets": self._websocket.sessions.num_lost,
        }


def _limits(card: ModelCard, options: IngressOptions) -> Limits:
    vision = card.architecture.vision
    return Limits(
        model=card.name,
        max_model_len=options.max_model_len or card.architecture.max_position,
        vocab_size=card.architecture.vocab_size,
        defaults=card.generation,
        reasoning=options.reasoning,
        tool_syntax=syntax_of(card.chat_template),
        pooling=options.pooling,
        images=ImageLimits(vision.num_tokens, options.max_images) if vision else None,
    )
