"""CompiledGrammars: those that the runner's sequences follow, compiled beside its steps and kept.

A copy of a compiled one is made in microseconds, so a grammar is compiled once as long as it is kept.
"""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from pipeline.grammar.constraint import Constraint
from pipeline.grammar.library import TokenizerSpec, compile_grammar, new_tokenizer
from pipeline.messages import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_BYTES = 512 << 20
BASE_BYTES, BYTES_A_CHAR = 8 << 20, 256
"""What a compiled grammar can come to take: library.MAX_LEXER_STATES, at 1.5 KB each; few take a tenth."""


class CompiledGrammars:
    """Any thread may ask. The vocabulary is read when the first grammar comes.

    Args:
        max_bytes: of those kept; the ones that sequences follow now are not counted.
    """

    def __init__(self, spec: TokenizerSpec, max_bytes: int = MAX_BYTES) -> None:
        self._spec = spec
        self._end_ids = frozenset(spec.eos_ids)
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._kept: OrderedDict[Grammar, Future[LLMatcher]] = OrderedDict()
        self.num_bytes = 0
        self._thread: ThreadPoolExecutor | None = None
        self._tokenizer: LLTokenizer | None = None

    def open(self, grammar: Grammar, token_ids: Sequence[int] = ()) -> Constraint:
        """For a sequence that has this output so far. Returns at once; whoever fills its mask waits."""
        with self._lock:
            compiled = self._kept.get(grammar)
            if compiled is None:
                compiled = self._kept[grammar] = self._submit(grammar)
                self.num_bytes += _num_bytes(grammar)
            self._kept.move_to_end(grammar)
            while self.num_bytes > self._max_bytes and len(self._kept) > 1:
                oldest, _ = self._kept.popitem(last=False)
                self.num_bytes -= _num_bytes(oldest)
        return Constraint(compiled, partial(self._compile_anew, grammar), self._end_ids, token_ids)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._kept.clear()
            self.num_bytes = 0
        if thread is not None:
            thread.shutdown(cancel_futures=True)

    def _submit(self, grammar: Grammar) -> "Future[LLMatcher]":
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        return self._thread.submit(self._compile, grammar)

    def _compile_anew(self, grammar: Grammar) -> "LLMatcher":
        """And those who come from now on get a copy of that one."""
        matcher = self._compile(grammar)
        fresh: Future[LLMatcher] = Future()
        fresh.set_result(matcher.deep_copy())
        with self._lock:
            if grammar in self._kept:
                self._kept[grammar] = fresh
        return matcher

    def _compile(self, grammar: Grammar) -> "LLMatcher":
        if self._tokenizer is None:
            self._tokenizer = new_tokenizer(self._spec)
        return compile_grammar(self._tokenizer, grammar)


def _num_bytes(grammar: Grammar) -> int:
    return BASE_BYTES + BYTES_A_CHAR * len(grammar.text)
