"""The body of a request: read within its bounds of size and time."""

import asyncio

from aiohttp import web

from pipeline.errors import RequestError
from pipeline.stages.ingress.options import IngressOptions


async def read_body(request: web.Request, options: IngressOptions) -> bytes:
    """Raises RequestError 408, 413 or 415."""
    limit, timeout_s = options.max_body_bytes, options.body_timeout_s
    too_large = RequestError(f"The body is over {limit} bytes.", status=413, code="body_too_large")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise RequestError("A compressed body is not accepted.", status=415, code="unsupported_encoding")
    if (request.content_length or 0) > limit:
        raise too_large
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        message = f"The body did not arrive within {timeout_s:g} s."
        raise RequestError(message, status=408, code="body_timeout") from None
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
