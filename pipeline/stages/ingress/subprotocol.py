"""What a websocket's handshake offers as subprotocols (RFC 6455 section 1.9): the version, and perhaps a key.

A browser cannot send an Authorization header with a handshake, nor see the status that refuses one. So a key
may come as a subprotocol, and who knows our version is refused by a close code.
"""

from aiohttp import hdrs, web

from pipeline.errors import RequestError

PROTOCOL = "stageline.v1"
_KEY = "stageline.key."
_POLICY, _TRY_AGAIN_LATER = 1008, 1013
_GOODBYE_S = 2.0

UNKNOWN = RequestError(f"Of the subprotocols offered, one must be {PROTOCOL!r}.", code="unknown_subprotocol")


def check_offer(request: web.Request) -> None:
    """Raises RequestError where the version is not among what is offered. aiohttp's own check, which comes
    later, would log what is: it may hold a key.
    """
    offered = _offered(request)
    if offered and PROTOCOL not in offered:
        raise UNKNOWN


def key_of(request: web.Request) -> str:
    """The key among what is offered; empty: none is."""
    keys = [each.removeprefix(_KEY) for each in _offered(request) if each.startswith(_KEY)]
    return keys[0] if len(keys) == 1 else ""


async def refuse(request: web.Request, error: RequestError) -> web.StreamResponse:
    """By a close code whose reason is the error's code, or by an HTTP status: then raises the error."""
    ws = web.WebSocketResponse(timeout=_GOODBYE_S, protocols=(PROTOCOL,), compress=False)
    if PROTOCOL not in _offered(request) or not ws.can_prepare(request):
        raise error
    await ws.prepare(request)
    code = _TRY_AGAIN_LATER if error.status == 503 else _POLICY
    await ws.close(code=code, message=(error.code or "").encode())
    return ws


def _offered(request: web.Request) -> list[str]:
    """As aiohttp reads it: the first header counts."""
    offered = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "")
    return [each.strip() for each in offered.split(",") if each.strip()]
