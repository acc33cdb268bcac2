"""GrammarChecker: whether a grammar that a client sent can be used.

It is tried in a process of its own with limits (grammar.worker, runtime.confined), which is started anew for
the next one where a grammar has killed it.
"""

import hashlib
from collections import OrderedDict

import msgspec

from pipeline.grammar.library import TokenizerSpec
from pipeline.grammar.worker import Verdict
from pipeline.messages import Grammar
from pipeline.runtime.confined import Bounds, Confined

MAX_VERDICTS = 4096
"""Known at a time; each is some hundred bytes."""
MEMORY_BYTES = 768 << 20


class GrammarRefused(ValueError):
    """It cannot be used. The text says why, and is for the client."""


class GrammarChecker:
    """One thread at a time may `check`; any may ask `knows`.

    Args:
        timeout_s: for one grammar.
    """

    def __init__(self, spec: TokenizerSpec, timeout_s: float) -> None:
        bounds = Bounds(max(1, round(timeout_s)), MEMORY_BYTES)
        self.confined = Confined("pipeline.grammar.worker", msgspec.msgpack.encode(spec), bounds)
        self._timeout_s = timeout_s
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()

    def knows(self, grammar: Grammar) -> bool:
        """`check` would answer at once."""
        return _key(grammar) in self._verdicts

    def check(self, grammar: Grammar) -> None:
        """Raises GrammarRefused; within the time limit, once the process runs."""
        key = _key(grammar)
        if key not in self._verdicts:
            self._verdicts[key] = self._ask(grammar)
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        fault = self._verdicts[key]
        if fault is not None:
            raise GrammarRefused(fault)

    def close(self) -> None:
        """Idempotent."""
        self.confined.close()

    def _ask(self, grammar: Grammar) -> str | None:
        answer = self.confined.ask(msgspec.msgpack.encode(grammar), self._timeout_s)
        if answer is None:
            return f"it takes more than {self._timeout_s:g} s or too much memory to compile"
        return msgspec.msgpack.decode(answer, type=Verdict).fault


def _key(grammar: Grammar) -> bytes:
    return hashlib.sha256(grammar.kind.encode() + b"\0" + grammar.text.encode()).digest()
