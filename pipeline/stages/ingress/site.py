"""The listening socket: where connections come in, and how many may."""

import asyncio
import ssl
from collections.abc import Callable
from ipaddress import ip_address

from aiohttp import web

from pipeline.errors import ConfigError

BACKLOG = 1024
GOODBYE_S = 1.0
"""How long a peer may take to end TLS in good order."""


class _Turned(asyncio.Protocol):
    """A connection too many: closed at once, before a byte of it is read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class Site(web.BaseSite):
    """TCP, with TLS or without, and at most `max_connections` at a time."""

    def __init__(
        self,
        runner: web.AppRunner,
        host: str,
        port: int,
        max_connections: int,
        ssl_context: ssl.SSLContext | None = None,
        handshake_timeout_s: float = 15.0,
    ) -> None:
        super().__init__(runner, ssl_context=ssl_context, backlog=BACKLOG)
        self._handshake_timeout_s = handshake_timeout_s
        self._host, self._port = host, port
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
        assert server is not None

        def protocol() -> asyncio.BaseProtocol:
            if len(server.connections) < self._max_connections:
                return server()
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
