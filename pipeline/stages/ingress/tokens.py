"""POST /tokenize and /detokenize: questions that the tokenize pool answers, off the loop."""

import asyncio

from aiohttp import web

from pipeline.core.wire import Limits, parse_detokenize, parse_tokenize
from pipeline.errors import InboxClosed, RequestError
from pipeline.messages import ChatMessage, TokenCall
from pipeline.runtime.stage import StageContext
from pipeline.stages.ingress.body import read_body
from pipeline.stages.ingress.intake import DRAINING
from pipeline.stages.ingress.options import IngressOptions
from pipeline.stages.ingress.replies import json_response


class _Reply:
    """Implements messages.TokenReply. Its client may have left."""

    def __init__(self) -> None:
        self.value: asyncio.Future[list[int] | str] = asyncio.get_running_loop().create_future()

    def tokens(self, value: list[int] | str) -> None:
        if not self.value.done():
            self.value.set_result(value)

    def error(self, error: RequestError) -> None:
        if not self.value.done():
            self.value.set_exception(error)


class TokenDoor:
    """The handlers. A full pool is an answer, 429, as for requests."""

    def __init__(self, ctx: StageContext, limits: Limits, options: IngressOptions) -> None:
        self._calls = ctx.outlet(TokenCall)
        self._limits = limits
        self._options = options

    async def tokenize(self, request: web.Request) -> web.Response:
        asked = parse_tokenize(await read_body(request, self._options), self._limits)
        ids = await self._ask(prompt=asked.prompt, chat=asked.chat, adds_special=asked.adds_special)
        about = {"count": len(ids), "max_model_len": self._limits.max_model_len, "tokens": ids}
        return json_response(about)

    async def detokenize(self, request: web.Request) -> web.Response:
        token_ids = parse_detokenize(await read_body(request, self._options), self._limits)
        return json_response({"prompt": await self._ask(token_ids=token_ids)})

    async def _ask(
        self,
        prompt: str | None = None,
        chat: list[ChatMessage] | None = None,
        token_ids: list[int] | None = None,
        adds_special: bool = True,
    ) -> list[int] | str:
        reply = _Reply()
        try:
            is_taken = self._calls.offer(TokenCall(reply, prompt, chat, token_ids, adds_special))
        except InboxClosed:
            raise DRAINING from None
        if not is_taken:
            raise RequestError(
                "The tokenizers have too much to do; try again later.", status=429, code="queue_full"
            )
        return await reply.value
