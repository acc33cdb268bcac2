"""ProcessTokenize: each instance's tokenizer in a process of its own.

A prompt that brings a tokenizer down, or eats its memory, takes that process with it and not the server: the
request is refused, another process takes over. Nor do chat templates, which are Python, hold the GIL of the
server. The price is that prompts and token ids cross a pipe.
"""

import asyncio
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

from msgspec.structs import replace

from pipeline.messages import GenerateRequest, TokenCall
from pipeline.stage_api import ModelCard, RequestError, StageContext
from pipeline.stages.tokenize import BatchEncoder, Encoded, Tokenize, TokenizeOptions, attempt

P = ParamSpec("P")
R = TypeVar("R")


class ProcessTokenize(Tokenize):
    """What is asked and answered is the built-in stage's; only where it is worked out is another place."""

    api = 1

    def __init__(self, ctx: StageContext, options: TokenizeOptions) -> None:
        super().__init__(ctx, options)
        self._process: ProcessPoolExecutor | None = None

    async def start(self) -> None:
        await self._opened()

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.shutdown, cancel_futures=True)

    async def encode(self, requests: Sequence[GenerateRequest]) -> list[Encoded | Exception]:
        """Where one of several has ended the process, each is tried by itself: only that one is refused."""
        try:
            return await self._call(_encode, list(requests))
        except BrokenProcessPool:
            self.ctx.log.warning("a tokenizer's process died", num_requests=len(requests))
            if len(requests) == 1:
                return [_refusal()]
            return [outcome for each in requests for outcome in await self.encode([each])]

    async def answer(self, call: TokenCall) -> list[int] | str | Exception:
        try:
            return await self._call(_answer, replace(call, reply=_NOBODY))  # replies stay in this process
        except BrokenProcessPool:
            return _refusal()

    async def _call(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it in the process. BrokenProcessPool: that died; the next call begins another."""
        process = await self._opened()
        try:
            return await asyncio.get_running_loop().run_in_executor(process, work, *args)
        except BrokenProcessPool:
            await self.stop()
            raise

    async def _opened(self) -> ProcessPoolExecutor:
        """The process, with its tokenizer loaded."""
        if self._process is None:
            spawn, ignore = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
            self._process = ProcessPoolExecutor(1, spawn, signal.signal, ignore)  # Ctrl-C is the server's
            card = self.ctx.resource(ModelCard)
            await asyncio.get_running_loop().run_in_executor(self._process, _open, card, self.options)
        return self._process


def _refusal() -> RequestError:
    return RequestError("The server could not tokenize this request.", status=500, code="internal_error")


# In the process -----------------------------------------------------------------------------------


class _Nobody:
    """A reply that is not told here."""

    def tokens(self, value: list[int] | str) -> None: ...

    def error(self, error: RequestError) -> None: ...


_NOBODY = _Nobody()
_encoder: BatchEncoder
"""There is one process for each instance, and this is what it is for."""


def _open(card: ModelCard, options: TokenizeOptions) -> None:
    global _encoder
    _encoder = BatchEncoder(card, options)


def _encode(requests: list[GenerateRequest]) -> list[Encoded | Exception]:
    return _encoder.encode(requests)


def _answer(call: TokenCall) -> list[int] | str | Exception:
    return attempt(_encoder.answer, call)
