"""Stages of an engineer who has a bad day, and of one who has a good one."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pipeline.messages import TextBatch, TokenBatch
from pipeline.runtime.stage import NoOptions, NoState, Stage, StageContext
from pipeline.stages.detokenize import Detokenize


class Loud(Detokenize):
    """All in capitals."""

    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        outlet = self.ctx.outlet(TextBatch)
        for step in batch:
            text = self._to_text(step, 0)
            await outlet.send(replace(text, texts=[each.upper() for each in text.texts]))


class Crashing(Detokenize):
    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        await super().handle(batch)
        raise ValueError("no such thing")


class Hanging(Detokenize):
    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        await asyncio.sleep(3600)


class Exiting(Detokenize):
    async def start(self) -> None:
        raise SystemExit(5)


class Talking(Detokenize):
    """Sends what no link carries there."""

    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        await self.ctx.outlet(TextBatch).send("hello")  # type: ignore[arg-type]


class Deaf(Detokenize):
    takes = (TextBatch,)  # type: ignore[assignment]


class OnlyLive(Detokenize):
    """Works on the bench; in a server it fails at its n-th batch, in the way that `how` says."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        at: int = 3
        how: str = "crash"

    def __init__(self, ctx: StageContext, options: Any) -> None:
        super().__init__(ctx, NoOptions())
        self._told = options
        self._num_batches = 0

    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        self._num_batches += 1
        is_live = "." not in self.ctx.name
        await super().handle(batch)
        if is_live and self._num_batches == self._told.at:
            if self._told.how == "wait":
                await asyncio.sleep(3600)
            if self._told.how == "compute":
                time.sleep(3600)  # noqa: ASYNC251 - that is what is wrong with it
            raise ValueError("not on the bench")


class Dropping(Detokenize):
    """Loses every 20th row's text."""

    num_rows = 0

    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        outlet = self.ctx.outlet(TextBatch)
        for step in batch:
            text = self._to_text(step, 0)
            texts = []
            for each in text.texts:
                self.num_rows += 1
                texts.append("" if self.num_rows % 20 == 0 else each)
            await outlet.send(replace(text, texts=texts))


class Slow(Detokenize):
    """Waits, but does not block."""

    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        await asyncio.sleep(0.5)
        await super().handle(batch)


class Blocking(Detokenize):
    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        time.sleep(3600)  # noqa: ASYNC251 - that is what is wrong with it


class Calm(Stage[TextBatch, NoOptions]):
    """In the place of the filter, with nothing to know."""

    takes = (TextBatch,)
    gives = (TextBatch,)
    State = NoState

    async def handle(self, batch: Sequence[TextBatch]) -> None:
        for step in batch:
            await self.ctx.outlet(TextBatch).send(step)
