"""The listening socket: where connections come in, and how many may."""

import asyncio
import ssl
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from pipeline.errors import ConfigError

BACKLOG = 1024
GOODBYE_S = 1.0
"""How long a peer may take to end TLS in good order."""


class _Turned(asyncio.Protocol):
    """A connection too many: closed at once, before a byte of it is read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class Connection(web.RequestHandler):
    """Answers bytes that are not HTTP in fixed words: aiohttp's own repeat them, a key among headers too."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        is_long = isinstance(exc, LineTooLong)
        fixed = "The request line, or a header, is too long." if is_long else "This is not valid HTTP/1.1."
        return super().handle_error(request, status, exc, fixed)


class Site(web.BaseSite):
    """TCP, with TLS or without, and at most `max_connections` at a time.

    Args:
        protocol_options: of each Connection, as the runner's own.
    """

    def __init__(
        self,
        runner: web.AppRunner,
        host: str,
        port: int,
        max_connections: int,
        protocol_options: dict[str, Any],
        ssl_context: ssl.SSLContext | None = None,
        handshake_timeout_s: float = 15.0,
    ) -> None:
        super().__init__(runner, ssl_context=ssl_context, backlog=BACKLOG)
        self._handshake_timeout_s = handshake_timeout_s
        self._host, self._port = host, port
        self._protocol_options = protocol_options
        self._max_connections = max_connections
        self.num_turned = 0
        """Connections closed for there were too many."""

    @property
    def name(self) -> str:
        return f"{'https' if self._ssl_context else 'http'}://{self._host}:{self.port}"

    @property
    def port(self) -> int:
        """The one that is open, once started."""
        sockets = getattr(self._server, "sockets", None)
        return int(sockets[0].getsockname()[1]) if sockets else self._port

    async def start(self) -> None:
        """Open the port. Raises OSError."""
        await super().start()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._protocol(),
            self._host,
            self._port,
            ssl=self._ssl_context,
            backlog=self._backlog,
            reuse_address=True,
            ssl_handshake_timeout=self._handshake_timeout_s if self._ssl_context else None,
            ssl_shutdown_timeout=GOODBYE_S if self._ssl_context else None,
        )

    def _protocol(self) -> Callable[[], asyncio.BaseProtocol]:
        server = self._runner.server
        assert isinstance(server, web.Server)
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.BaseProtocol:
            if len(server.connections) < self._max_connections:
                return Connection(server, loop=loop, **self._protocol_options)
            self.num_turned += 1
            return _Turned()

        return protocol


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tls_context(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """None where neither file is named. Raises ConfigError."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        missing = "tls_cert" if cert is None else "tls_key"
        raise ConfigError(f"stages.ingress.options: {missing} must be set as well: TLS needs both")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"stages.ingress.options: tls_cert = {cert!r}, tls_key = {key!r}: cannot be used: {error}"
        ) from error
    return context
