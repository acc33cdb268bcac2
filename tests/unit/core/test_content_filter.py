"""What a content filter lets out: the same however the text is cut, and as by a search of the whole."""

import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.content_filter import ContentFilter, Rule, Rules
from pipeline.core.growing import growing
from pipeline.errors import ConfigError

re2: Any = pytest.importorskip("re2", reason="google-re2 is not installed (the extra `filter`)")

RULES = [
    Rule("badword", "redact", "[x]", ignore_case=True),
    Rule(r"\bab+c?\b", "redact", "<y>"),
    Rule(r"\d{3,5}", "redact", "#"),
    Rule(r"(?:foo|ba[rz])+x?$", "redact", "$"),
    Rule("stop me", "stop"),
]
COMPILED = Rules(RULES, re2.compile)
PIECES = ["bad", "word", "BAD", "ab", "b", "c", " ", "1", "23", "stop", " me", "x", "foo", "bar", "é", "d"]


def searched(text: str) -> tuple[str, Rule | None]:
    """By Python's own engine, over the whole text; words and digits are ASCII's, as for RE2."""
    out, at = "", 0
    named = (f"(?P<r{k}>(?a{'i' * rule.ignore_case}:{rule.pattern}))" for k, rule in enumerate(RULES))
    for match in re.finditer("|".join(named), text):
        rule = RULES[int((match.lastgroup or "")[1:])]
        out, at = out + text[at : match.start()], match.end()
        if rule.action == "stop":
            return out, rule
        out += rule.replacement
    return out + text[at:], None


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14), cuts=st.randoms(use_true_random=False))
def test_the_verdict_does_not_depend_on_where_the_text_is_cut(pieces: list[str], cuts: random.Random) -> None:
    text = "".join(pieces)
    content, out, at = ContentFilter(COMPILED, cleans=False), "", 0
    while at < len(text):
        size = cuts.randint(1, 4)
        out += content.push(text[at : at + size])
        at += size
    out += content.flush()
    assert (out, content.stopped_by) == searched(text)


@pytest.mark.parametrize(
    ("pattern", "text", "held"),
    [
        ("badword", "so bad", "bad"),
        ("badword", "so bed", ""),
        (r"\d{3,5}", "a 123", "123"),
        (r"\d{3,5}", "a 12345", ""),
        (r"(foo|bar)+x", "foob", "foob"),
        (r"bad\b", "bad", "bad"),
        (r"^bad", "bad", ""),
        (r"a[^x-z]*c", "qabbb", "abbb"),
        ("colou?r", "colo", "colo"),
        ("a.c", "ab", "ab"),
    ],
)
def test_no_more_is_held_back_than_could_become_a_match(pattern: str, text: str, held: str) -> None:
    content = ContentFilter(Rules([Rule(pattern, "redact", "")], re2.compile), cleans=False)
    content.push(text)
    assert content._text[content._at :] == held


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("a*", "matches the empty text"),
        ("(", "is not a regular expression"),
        (r"(a)\1", "groupref is not possible"),
        ("a(?=b)", "assert is not possible"),
        ("(?i)a", "flags inside"),
        ("(?i:a)b", "is not possible"),
    ],
)
def test_what_cannot_be_done_is_said(pattern: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        growing(pattern)


def test_the_size_grows_with_the_expression_only() -> None:
    assert len(growing("abcdefghij" * 20)) < 40 * len(growing("abcdefghij"))
    term = "x" * 500
    content = ContentFilter(Rules([Rule(term, "redact", "!")], re2.compile), cleans=False)
    assert content.push("x" * 499) == "" and content.push("x") == "!"


def test_characters_that_nobody_sees_hide_nothing() -> None:
    content = ContentFilter(COMPILED, cleans=True)
    assert content.push("bad\u200bwo\x00rd\u202e") + content.flush() == "[x]"
    content = ContentFilter(None, cleans=True)
    text = "a\tb\nc \u00e9\u4e2d\U0001f600 e\u0301"
    assert content.push(text + "\ufeff\x07") + content.flush() == text
