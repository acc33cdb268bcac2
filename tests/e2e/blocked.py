"""A tokenize stage that encodes nothing until it is let go."""

import asyncio
from collections.abc import Sequence

from pipeline.messages import GenerateRequest, TokenCall
from pipeline.runtime.stage import StageContext
from pipeline.stages.tokenize import Tokenize, TokenizeOptions


class BlockedTokenize(Tokenize):
    def __init__(self, ctx: StageContext, options: TokenizeOptions) -> None:
        super().__init__(ctx, options)
        self.go_on = asyncio.Event()

    async def handle(self, batch: Sequence[GenerateRequest | TokenCall]) -> None:
        await self.go_on.wait()
        await super().handle(batch)
