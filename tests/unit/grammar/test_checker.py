"""Grammars of strangers: what can be used is, what would hurt is refused in time, the next one is served."""

import json
import os
import time
from collections.abc import Iterator

import pytest

from pipeline.checkpoint.fake import byte_card
from pipeline.grammar import GrammarChecker, GrammarRefused
from pipeline.grammar.library import TokenizerSpec
from pipeline.messages import Grammar

CARD = byte_card()
SPEC = TokenizerSpec(CARD.tokenizer_json, CARD.architecture.vocab_size, CARD.eos_ids)
TIMEOUT_S = 0.5
GOOD = Grammar("regex", "[0-9]{3}")


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker(SPEC, TIMEOUT_S)
    yield checker
    checker.close()


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


def doubled(depth: int) -> str:
    """2 ** depth paths."""
    rules = {f"r{at}": {"anyOf": [{"$ref": f"#/$defs/r{at + 1}"}] * 2} for at in range(depth)}
    return json.dumps({"$ref": "#/$defs/r0", "$defs": rules | {f"r{depth}": {"type": "null"}}})


MALICIOUS = {
    "deep schema": Grammar("json", nested(6000)),
    "recursion without an end": Grammar("json", '{"$ref":"#"}'),
    "rules that double": Grammar("json", doubled(40)),
    "a divisor": Grammar("json", '{"type":"integer","multipleOf":99999989}'),
    "an array of a million": Grammar("json", '{"type":"array","minItems":1000000,"maxItems":1000000}'),
    "a huge enum": Grammar("json", json.dumps({"enum": [f"entry {number}" for number in range(4500)]})),
    "automata that multiply": Grammar(
        "json",
        json.dumps({"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(9, 25)]}),
    ),
    "a file": Grammar("json", '{"$ref":"file:///etc/passwd"}'),
    "an address": Grammar("json", '{"$ref":"http://127.0.0.1:9/x"}'),
    "a million": Grammar("regex", "a{1,1000000}"),
    "a million of a million": Grammar("regex", "(a{1,1000000}){1,1000000}"),
    "optional": Grammar("regex", "(?:a?){500}a{500}"),
    "classes": Grammar("regex", r"(\p{L}{1,200}|\w{3,900}){1,300}"),
    "alternatives": Grammar("regex", "(a|aa|aaa|a*)*b"),
    "deep regex": Grammar("regex", "(" * 30_000 + "a" + ")" * 30_000),
    "deep grammar": Grammar("lark", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "left recursion": Grammar("lark", 'start: start start | "x"'),
    "nothing but rules": Grammar("lark", "start: a\na: b\nb: a"),
    "empty repeats": Grammar("lark", 'start: a*\na: b*\nb: "x"*'),
    "many optional rules": Grammar(
        "lark",
        "start: "
        + " ".join(f"x{n}?" for n in range(400))
        + "\n"
        + "\n".join(f'x{n}: "a"*' for n in range(400)),
    ),
    "no grammar": Grammar("lark", "\x00\xff{{{"),
    "many choices": Grammar("choice", json.dumps(["a" * 60 + str(number) for number in range(999)])),
}
REFUSED = {
    "deep schema",
    "recursion without an end",
    "a divisor",
    "automata that multiply",
    "a file",
    "an address",
    "optional",
    "deep regex",
    "deep grammar",
    "nothing but rules",
    "many optional rules",
    "no grammar",
}
"""At the least; which of the others are depends on the vocabulary."""


@pytest.mark.parametrize("name", MALICIOUS)
def test_what_would_hurt_is_refused_in_time_and_the_next_is_served(
    checker: GrammarChecker, name: str
) -> None:
    checker.check(GOOD)
    began_s, text = time.monotonic(), ""
    try:
        checker.check(MALICIOUS[name])
    except GrammarRefused as refused:
        text = str(refused)
    took_s = time.monotonic() - began_s
    assert took_s < 20 * TIMEOUT_S, "with the start of a new process, on a busy machine"
    assert text or name not in REFUSED
    assert len(text) < 200 and "\n" not in text
    other = Grammar("regex", f"{name}[0-9]")
    checker.check(other)


def test_a_verdict_is_kept(checker: GrammarChecker) -> None:
    slow = Grammar("json", '{"type":"integer","multipleOf":99999971}')
    assert not checker.knows(slow)
    for _ in range(2):
        with pytest.raises(GrammarRefused, match="s or too much memory"):
            checker.check(slow)
        assert checker.knows(slow)


def test_a_process_that_died_is_started_again() -> None:
    checker = GrammarChecker(SPEC, TIMEOUT_S)
    checker.check(GOOD)
    pid = checker.confined.pid
    assert pid is not None
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    checker.check(Grammar("regex", "a"))
    checker.close()
    checker.close()
