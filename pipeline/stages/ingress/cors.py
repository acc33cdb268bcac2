"""CORS (Fetch standard, section 3.2): which pages of other sites a browser lets in, and which sockets we do.

A browser asks before it lets a page read an answer of ours. It does not ask before it opens a websocket, so
there the Origin is checked here: any page that its user visits could else use his server.
"""

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from pipeline.errors import RequestError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_METHODS = "GET, POST, DELETE, OPTIONS"
_HEADERS = "Authorization, Content-Type, traceparent"
_EXPOSED = "Retry-After, traceparent"
_MAX_AGE_S = "600"


class Cors:
    """Args:
    origins: scheme, host and port as browsers send them; "*" is all of them.
    """

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)

    def middleware(self) -> Middleware:
        """Answers preflight requests; they bring no key, so it stands before authentication."""

        @web.middleware
        async def preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
            asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
            if not asks or not self.allows(request):
                return await handler(request)
            headers = {
                "Access-Control-Allow-Methods": _METHODS,
                "Access-Control-Allow-Headers": _HEADERS,
                "Access-Control-Max-Age": _MAX_AGE_S,
            }
            return web.Response(status=204, headers=headers)

        return preflight

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """For aiohttp's on_response_prepare: on streams and errors too."""
        if not self._origins:
            return
        response.headers.add("Vary", "Origin")
        if self.allows(request):
            response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED

    def allows(self, request: web.Request) -> bool:
        """Whether it comes from a page that may read its answer."""
        origin = request.headers.get("Origin")
        return origin is not None and ("*" in self._origins or origin.lower() in self._origins)

    def check_socket(self, request: web.Request) -> None:
        """Raises RequestError 403 for a websocket of another site's page.

        A page of this host is ours, on whatever port: the live page has one of its own. Programs send no
        Origin.
        """
        origin = request.headers.get("Origin")
        if origin is None or self.allows(request):
            return
        if host_in(origin) != host_in(f"//{request.headers.get('Host', '')}"):
            raise RequestError(
                "Pages of this origin may not use this server: see cors_origins.",
                status=403,
                code="origin_not_allowed",
            )


def host_in(url: str) -> str | None:
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return None
    return "localhost" if host in ("127.0.0.1", "::1") else host
