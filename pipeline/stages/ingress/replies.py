"""Replies: every answer that is not a stream leaves here, and the end of every one that is.

One middleware turns each fault into OpenAI's error object, and cuts off a client that does not read the end
of its answer: aiohttp alone would wait for such a client without limit.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from pipeline.core.wire import SERVER_ERROR, error_body
from pipeline.errors import RequestError
from pipeline.stages.ingress.patience import until_read

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TRACEPARENT = "traceparent"
"""The header of W3C Trace Context."""
ANSWERED_TRACEPARENT = web.RequestKey("traceparent", str)
"""Where a door leaves, in aiohttp's request, what the answer's header is to be; empty: it has none."""


def traceparent_of(request: web.Request) -> str | None:
    """What the client sent, unchecked. Two of them are as none: nobody can say which is meant."""
    values = request.headers.getall(TRACEPARENT, ())
    return values[0] if len(values) == 1 else None


def json_response(value: object, status: int = 200) -> web.Response:
    return json_bytes(msgspec.json.encode(value), status)


def json_bytes(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def route_of(request: web.Request) -> str:
    """The route's own words, for a log: a path may hold anything."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "?"


def places_of(error: BaseException) -> list[str]:
    """Where it was raised, outermost first, for a log; its message may quote the client, and is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]


def replies(
    log: structlog.typing.FilteringBoundLogger, write_timeout_s: float, retry_after_s: int
) -> Middleware:
    """The middleware."""

    @web.middleware
    async def reply(request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        response = await _answer(request, handler)
        if not response.prepared and (traceparent := request.get(ANSWERED_TRACEPARENT)):
            response.headers[TRACEPARENT] = traceparent
        try:
            async with asyncio.timeout(write_timeout_s):
                await response.prepare(request)
                await response.write_eof()
        except ConnectionError:
            return response  # the client is gone; aiohttp finds that too and ends the connection
        except TimeoutError:
            if transport is not None:
                transport.abort()
            return response
        if transport is not None:
            await until_read(transport, 0, write_timeout_s)
        return response

    async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestError as error:
            return _error(error)
        except ConnectionError:
            return web.Response(status=400)  # the client has left: nobody reads this
        except web.RequestPayloadError:
            return _error(RequestError("The body is not valid HTTP.", code="invalid_body"))
        except web.HTTPException as error:
            return _http_error(request, error)
        except Exception as error:
            fault = {"error": type(error).__name__, "where": places_of(error)}
            log.error("request_failed", path=route_of(request), **fault)  # noqa: TRY400 - see places_of
            if request.writer.output_size and request.transport is not None:
                request.transport.abort()  # an answer has begun: nothing sensible can follow
            return _error(SERVER_ERROR)

    def _error(error: RequestError) -> web.Response:
        response = json_bytes(error_body(error), error.status)
        if error.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        if error.status in (429, 503):
            response.headers["Retry-After"] = str(max(retry_after_s, error.retry_after_s or 0))
        return response

    def _http_error(request: web.Request, error: web.HTTPException) -> web.Response:
        response = _error(_worded(request, error))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response

    return reply


def _worded(request: web.Request, error: web.HTTPException) -> RequestError:
    """aiohttp's own refusals in our words."""
    if isinstance(error, web.HTTPNotFound):
        return RequestError(
            "There is nothing at this path; GET / lists what is here.", status=404, code="not_found"
        )
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"{request.method[:16]} is not allowed here, only {allowed}."
        return RequestError(message, status=405, code="method_not_allowed")
    return RequestError(error.reason, status=error.status, code="http_error")


class Quiet(logging.Handler):
    """aiohttp's server logger, reduced to what may be logged: its records quote bytes that a client sent."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fault = record.exc_info[0] if record.exc_info else None
        self._log.debug("http_fault", error=fault.__name__ if fault else record.levelname)


def quiet_logger(log: structlog.typing.FilteringBoundLogger) -> logging.Logger:
    """A logger of its own, outside logging's tree, for AppRunner."""
    logger = logging.Logger("ingress")
    logger.addHandler(Quiet(log))
    return logger
