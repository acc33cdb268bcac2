"""The grammars of requests where they come in: none goes on that was not tried in a process of its own."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from pipeline.checkpoint.card import ModelCard
from pipeline.core.wire import Wanted
from pipeline.errors import RequestError
from pipeline.grammar import is_installed
from pipeline.grammar.checker import GrammarChecker, GrammarRefused
from pipeline.grammar.library import TokenizerSpec
from pipeline.messages import Grammar

MAX_WAITING = 32
"""Grammars that wait to be tried, one after the other; more are refused."""


class GrammarDoor:
    """Single loop. Costs nothing until the first grammar comes."""

    def __init__(self, card: ModelCard, timeout_s: float) -> None:
        spec = TokenizerSpec(card.tokenizer_json, card.architecture.vocab_size, card.eos_ids)
        self._is_installed = is_installed()
        self._has_end = bool(card.eos_ids)
        self._checker = GrammarChecker(spec, timeout_s)
        self._thread: ThreadPoolExecutor | None = None
        self._num_waiting = 0

    async def check(self, wanted: Wanted) -> None:
        """Raises RequestError that names the field whose grammar cannot be used."""
        grammar = wanted.sampling.grammar
        if grammar is None:
            return
        if not self._is_installed:
            raise RequestError(
                f"'{wanted.grammar_field}' needs an extra that this server has not: "
                "pip install 'stageline[structured]'.",
                param=wanted.grammar_field,
                code="structured_output_not_installed",
            )
        if not self._has_end:
            raise RequestError(
                f"'{wanted.grammar_field}' needs a model that has a token for the end.",
                param=wanted.grammar_field,
                code="structured_output_not_supported",
            )
        try:
            await self._try(grammar)
        except GrammarRefused as refused:
            raise RequestError(
                f"'{wanted.grammar_field}' cannot be used: {refused}.",
                param=wanted.grammar_field,
                code="invalid_grammar",
            ) from None

    async def stop(self) -> None:
        """Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._checker.close)

    async def _try(self, grammar: Grammar) -> None:
        if self._checker.knows(grammar):
            self._checker.check(grammar)
            return
        if self._num_waiting >= MAX_WAITING:
            raise RequestError(
                "Too many grammars wait to be compiled; try again later.",
                status=429,
                code="too_many_grammars",
                retry_after_s=1,
            )
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._num_waiting += 1
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._checker.check, grammar)
        finally:
            self._num_waiting -= 1
