"""The access log: a line an answer - who, what, status, bytes, time. Never a prompt, a text or a key."""

import time
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from pipeline.stages.ingress.authentication import PRINCIPAL
from pipeline.stages.ingress.replies import route_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def access_log(log: structlog.typing.FilteringBoundLogger) -> Middleware:
    """The outermost middleware: it sees what the client got."""

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        begin_ns = time.perf_counter_ns()
        status = 499  # the client left before its answer began
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            principal = request.get(PRINCIPAL)
            log.info(
                "access",
                method=request.method[:16],
                path=route_of(request),
                status=status,
                tenant=principal.tenant if principal else "",
                ms=round((time.perf_counter_ns() - begin_ns) / 1e6, 1),
                bytes=request.writer.output_size,
                peer=request.remote,
            )

    return note
