"""Reasoning split off: nothing is lost, whatever the cuts; no more is held back than a tag may begin with."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.reasoning import Part, ReasoningSplitter, ReasoningTags

PIECES = ["<think>", "</think>", "<", "think", "</thi", " ", "\n", "a", ">"]


def split(tags: ReasoningTags, text: str, cuts: random.Random) -> list[Part]:
    splitter, parts, at = ReasoningSplitter(tags), list[Part](), 0
    while at < len(text):
        size = cuts.randint(1, 9)
        parts += splitter.push(text[at : at + size])
        at += size
    return parts + splitter.flush()


def joined(parts: list[Part]) -> list[Part]:
    """Neighbours of a kind as one."""
    whole: list[Part] = []
    for part in parts:
        if whole and whole[-1].kind == part.kind != "tag":
            whole[-1] = Part(part.kind, whole[-1].text + part.text)
        else:
            whole.append(part)
    return whole


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=10),
    starts_open=st.booleans(),
    cuts=st.randoms(use_true_random=False),
)
def test_cuts_do_not_matter(pieces: list[str], starts_open: bool, cuts: random.Random) -> None:
    text, tags = "".join(pieces), ReasoningTags(starts_open=starts_open)
    parts = split(tags, text, cuts)
    assert "".join(part.text for part in parts) == text
    whole = ReasoningSplitter(tags)
    assert joined(parts) == joined([*whole.push(text), *whole.flush()])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", [("content", "plain")]),
        (
            "<think>a</think>b",
            [("tag", "<think>"), ("reasoning", "a"), ("tag", "</think>"), ("content", "b")],
        ),
        (" \n<think>a", [("tag", " \n<think>"), ("reasoning", "a")]),
        ("b <think>a</think>", [("content", "b <think>a</think>")]),
        ("<thin", [("content", "<thin")]),
        ("<think>a</thin", [("tag", "<think>"), ("reasoning", "a"), ("reasoning", "</thin")]),
    ],
)
def test_what_is_reasoning(text: str, expected: list[tuple[str, str]]) -> None:
    splitter = ReasoningSplitter(ReasoningTags())
    assert [tuple(part) for part in (*splitter.push(text), *splitter.flush())] == expected


def test_a_template_that_has_written_the_opening_tag() -> None:
    splitter = ReasoningSplitter(ReasoningTags("[T]", "[/T]", starts_open=True))
    assert splitter.push("hm [") == [("reasoning", "hm ")]
    assert splitter.push("/T]yes") == [("tag", "[/T]"), ("content", "yes")]
