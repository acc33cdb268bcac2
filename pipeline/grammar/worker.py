"""`python -m pipeline.grammar.worker`: compiles grammars of strangers, confined (runtime.confined).

Opened with a TokenizerSpec; answers each Grammar with one Verdict, all as msgpack.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pipeline.grammar.library import GrammarFault, TokenizerSpec, compile_grammar, message_of, new_tokenizer
from pipeline.messages import Grammar
from pipeline.runtime.confined import answer_all

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WALKS = (0.1, 0.5, 0.9)
"""Each grammar is tried along these texts, which always go on with the token that is there in the allowed
ones, so many"""
NUM_STEPS = 24
"""long: the library does much of its work only when it is asked what may come."""
MAX_STEP_S = 0.03
"""Of CPU time, for one token."""


class Verdict(msgspec.Struct, frozen=True):
    fault: str | None
    """None: it can be used."""


def judge(tokenizer: "LLTokenizer", grammar: Grammar, vocab_size: int) -> Verdict:
    """Compile it, and take a few steps along whatever it allows."""
    try:
        matcher = compile_grammar(tokenizer, grammar)
    except GrammarFault as fault:
        return Verdict(str(fault))
    for share in WALKS:
        wrong = _walk(matcher.deep_copy(), share, vocab_size)
        if wrong is not None:
            return Verdict(wrong)
    return Verdict(None)


def _walk(matcher: "LLMatcher", share: float, vocab_size: int) -> str | None:
    """What is wrong, if anything is."""
    words = np.zeros(-(-vocab_size // 32), dtype=np.int32)
    for _ in range(NUM_STEPS):
        began_s = time.thread_time()
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if matcher.is_error():
            return message_of(matcher.get_error())
        if time.thread_time() - began_s > MAX_STEP_S:
            return f"a token takes more than {MAX_STEP_S * 1000:g} ms"
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        if matcher.is_stopped():
            break
        matcher.consume_token(int(allowed[int(share * len(allowed))]))
    return None


def _open(words: bytes) -> Callable[[bytes], bytes]:
    spec = msgspec.msgpack.decode(words, type=TokenizerSpec)
    tokenizer = new_tokenizer(spec)

    def answer(question: bytes) -> bytes:
        grammar = msgspec.msgpack.decode(question, type=Grammar)
        return msgspec.msgpack.encode(judge(tokenizer, grammar, spec.vocab_size))

    return answer


if __name__ == "__main__":
    answer_all(_open)
