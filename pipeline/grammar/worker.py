"""`python -m pipeline.grammar.worker`: compiles grammars of strangers, where it hurts nobody.

Its limits are the kernel's: so much CPU time for each grammar, so much memory over what the vocabulary takes.
Past them it dies, and whoever asked takes that for the answer. stdin and stdout: a length of 4 bytes, then
msgpack: TokenizerSpec and Bounds, then one Verdict for each Grammar.
"""

import resource
import signal
import struct
import sys
import time
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np

from pipeline.grammar.library import GrammarFault, TokenizerSpec, compile_grammar, message_of, new_tokenizer
from pipeline.messages import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

LENGTH = struct.Struct("<I")
WALKS = (0.1, 0.5, 0.9)
"""Each grammar is tried along these texts, which always go on with the token that is there in the allowed
ones, so many"""
NUM_STEPS = 24
"""long: the library does much of its work only when it is asked what may come."""
MAX_STEP_S = 0.03
"""Of CPU time, for one token."""


class Bounds(msgspec.Struct, frozen=True):
    cpu_s: int
    """Of one grammar, and"""
    memory_bytes: int
    """of all of them together."""


class Opening(msgspec.Struct, frozen=True):
    spec: TokenizerSpec
    bounds: Bounds


class Verdict(msgspec.Struct, frozen=True):
    fault: str | None
    """None: it can be used."""


def write(stream: IO[bytes], message: Any) -> None:
    body = msgspec.msgpack.encode(message)
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def read(stream: IO[bytes]) -> bytes:
    """One body; b"" at the end."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""


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


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's, which closes stdin
    opening = msgspec.msgpack.decode(read(sys.stdin.buffer), type=Opening)
    tokenizer = new_tokenizer(opening.spec)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory(opening.bounds.memory_bytes)
    write(sys.stdout.buffer, Verdict(None))
    while body := read(sys.stdin.buffer):
        _limit_time(opening.bounds.cpu_s)
        grammar = msgspec.msgpack.decode(body, type=Grammar)
        write(sys.stdout.buffer, judge(tokenizer, grammar, opening.spec.vocab_size))


def _limit_memory(num_bytes: int) -> None:
    with open("/proc/self/statm") as statm:
        num_pages = int(statm.read().split()[0])
    limit = num_pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_time(cpu_s: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
