"""The admin port and the stages: what runs, and what is to run in its place (docs/stages.md).

Only where config.toml says `[admin] allow_swap = true`, and for who shows the token of pipeline.admin_token.
"""

from typing import Annotated

import msgspec
from aiohttp import web

from pipeline.admin_token import AdminToken
from pipeline.assemble import Pipeline
from pipeline.errors import ConfigError, RequestError, SwapRefused
from pipeline.runtime.swapped import Ending
from pipeline.stages.ingress.replies import json_response
from pipeline.swapping import Order, Swapper

MAX_SHADOW_S = 600


class SwapBody(Order, frozen=True, forbid_unknown_fields=True):
    """What is posted."""

    shadow_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_SHADOW_S)] = 0.0
    """Not 0: it is compared for so long with the one that serves, and takes no place."""


class StagesApi:
    """Handlers."""

    def __init__(self, pipeline: Pipeline, *, is_allowed: bool) -> None:
        self.swapper = Swapper(pipeline)
        self._is_allowed = is_allowed
        self._token = AdminToken()

    def start(self, port: int) -> None:
        """Raises StagelineError if the token cannot be written."""
        if self._is_allowed:
            self._token.write(port)

    def stop(self) -> None:
        """Idempotent."""
        self._token.remove()

    async def list(self, request: web.Request) -> web.Response:
        """What runs: [{name, use, options, workers, state, why_not}]."""
        self._check(request)
        return json_response(self.swapper.stages())

    async def swap(self, request: web.Request) -> web.Response:
        """200 when it is decided and the new one serves; 409 where the old one does, with the reason.

        With shadow_s: 200 and what was seen.
        """
        self._check(request)
        try:
            body = msgspec.json.decode(await request.read(), type=SwapBody)
            name = request.match_info["name"]
            if body.shadow_s:
                return json_response(await self.swapper.shadow(name, body, body.shadow_s))
            swapped = await self.swapper.swap(name, body)
        except msgspec.MsgspecError as error:
            raise RequestError(f"The body is wrong: {error}", code="invalid_body") from error
        except SwapRefused as error:
            raise RequestError(str(error), status=409, code=str(Ending.REFUSED)) from error
        except ConfigError as error:
            raise RequestError(str(error), status=404, code="no_such_stage") from error
        if swapped.ending is not Ending.SWAPPED:
            raise RequestError(swapped.reason, status=409, code=str(swapped.ending))
        return json_response(swapped)

    def _check(self, request: web.Request) -> None:
        if not self._is_allowed:
            raise RequestError(
                "This server does not let its stages be swapped: [admin] allow_swap is false.",
                status=403,
                code="swap_off",
            )
        if not self._token.admits(request.headers.get("Authorization")):
            raise RequestError(
                "Show the token of the server's user: see docs/stages.md.", status=401, code="wrong_token"
            )
