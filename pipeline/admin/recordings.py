"""The admin port and recordings: begin one, see how it stands, end it, fetch its file, remove it.

What changes something must come as JSON: a page of another site cannot have a browser send that without a
preflight (the fetch standard), and nobody here answers one. A file is found by the name of a recording of
this process, never by a path. Prompts are in it only where the configuration lets them: decision 0032.
"""

import asyncio
import os

import msgspec
from aiohttp import web

from pipeline.errors import RequestError
from pipeline.recordings.recordings import Recordings
from pipeline.recordings.wanted import Wanted
from pipeline.stages.ingress.replies import json_response

_BODY_S = 5.0


_PIECE = 1 << 18
"""Bytes of a file read at once."""


class RecordingsApi:
    """Handlers."""

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings

    async def list(self, request: web.Request) -> web.Response:
        """How each stands, oldest first."""
        return json_response(self._recordings.states())

    async def begin(self, request: web.Request) -> web.Response:
        """201: it has begun. The body is a `Wanted`, as JSON."""
        body = await _json(request)
        try:
            wanted = msgspec.json.decode(body, type=Wanted)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestError(f"The body is wrong: {error}", code="invalid_body") from error
        return json_response(await self._recordings.begin(wanted), 201)

    async def end(self, request: web.Request) -> web.Response:
        """200: its file is whole. The body is empty JSON."""
        await _json(request)
        return json_response(await self._recordings.end(_id(request)))

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Of one that has ended."""
        path = await self._recordings.file_of(_id(request))
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": f'attachment; filename="{path.name}"',
        }
        response = web.StreamResponse(headers=headers)
        with path.open("rb") as file:  # web.FileResponse leaves it open where its client goes
            response.content_length = os.fstat(file.fileno()).st_size
            await response.prepare(request)
            while piece := await asyncio.to_thread(file.read, _PIECE):
                await response.write(piece)
        return response

    async def remove(self, request: web.Request) -> web.Response:
        """204: it has ended, and its file is deleted."""
        await self._recordings.remove(_id(request))
        return web.Response(status=204)


def _id(request: web.Request) -> str:
    return request.match_info["id"]


async def _json(request: web.Request) -> bytes:
    if request.content_type != "application/json":
        raise RequestError("Content-Type must be application/json.", status=415, code="not_json")
    try:
        async with asyncio.timeout(_BODY_S):
            return await request.read()
    except TimeoutError:
        raise RequestError("The body did not arrive in time.", status=408, code="body_timeout") from None
