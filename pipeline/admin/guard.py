"""Guard: who may ask the admin port, and what a browser may do with its answers.

There is no password, so two things hold the door: the loopback address by default, and the Host header. A
page of another site can make a browser send requests here by giving its own name our address (DNS rebinding);
such a request has that site's name in Host, and is refused. A literal address cannot be rebound.
"""

import re
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from pipeline.errors import RequestError

WILDCARDS = ("", "0.0.0.0", "::")
"""What a server listens on to be reached by every address of its machine."""
_HOST = re.compile(r"[0-9A-Za-z._:-]+")
_POLICY = (
    "default-src 'self'; connect-src 'self' {door}; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def host_of(header: str) -> str:
    """The name or address in a Host header, without port and brackets (RFC 9110 section 7.2).

    Empty for what is neither, so that it may stand in a header of ours.
    """
    bare = header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
    return bare.lower() if _HOST.fullmatch(bare) else ""


def is_ours(header: str, configured: str) -> bool:
    """Whether a request with this Host header was meant for us."""
    host = host_of(header)
    return host in ("localhost", configured.lower()) or _is_address(host)


def guard(configured: str) -> Middleware:
    """Refuses requests for other hosts with 403."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_ours(request.headers.get("Host", ""), configured):
            raise RequestError(
                "This Host is not the admin port's: use localhost, an IP address, or what admin.host says.",
                status=403,
                code="wrong_host",
            )
        return await handler(request)

    return check


def headers(door: str) -> dict[str, str]:
    """Of every answer. `door` is the websocket that the page's playground may open."""
    return {
        "Content-Security-Policy": _POLICY.format(door=door),
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
