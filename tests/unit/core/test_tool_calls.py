"""Calls in an answer's text: the same however it is cut, and what is no call stays text."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.tool_calls import Call, Syntax, new_parser, syntax_of

NAMES = ("get", "put")
GET = '<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>'
CALLED = Call("get", '{"a": 1}')


def parts_of(syntax: Syntax, *pieces: str) -> list[str | Call]:
    """With texts that follow one another joined."""
    parser = new_parser(syntax, NAMES)
    found = [part for piece in pieces for part in parser.push(piece)] + parser.flush()
    joined: list[str | Call] = []
    for part in found:
        if joined and isinstance(part, str) and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("Hello <b> {}", ["Hello <b> {}"]),
        (" spaced \n", [" spaced \n"]),
        (GET, [CALLED]),
        (f"Let me see.\n\n{GET}", ["Let me see.", CALLED]),
        (f"{GET}\n{GET}", [CALLED, CALLED]),
        (f"{GET}\nDone.", [CALLED, "Done."]),
        ('<tool_call>{"name": "put"}', [Call("put", "{}")]),
        ('<tool_call>{"name": "put", "arguments": {"x": "</tool_call>"}}</tool_call>',
         [Call("put", '{"x": "</tool_call>"}')]),
        ("<tool_call>{broken}</tool_call> so", ["<tool_call>{broken}</tool_call> so"]),
        *((text, [text]) for text in (
            '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
            '<tool_call>{"name": ["get"]}</tool_call>',
            '<tool_call>{"name": "get", "arguments": "x"}</tool_call>',
            "<tool_call>[]</tool_call>",
        )),
        (f"<tool_call>oh</tool_call>{GET}", ["<tool_call>oh</tool_call>", CALLED]),
        ("a <tool_cal", ["a <tool_cal"]),
        ('<tool_call>{"name": "get", "argu', ['<tool_call>{"name": "get", "argu']),
        ("<tool_call>" + "[" * 50_000 + "</tool_call>", ["<tool_call>" + "[" * 50_000 + "</tool_call>"]),
    ],
)  # fmt: skip
def test_hermes(text: str, parts: list[str | Call]) -> None:
    assert parts_of("hermes", text) == parts
    if len(text) < 1000:
        assert parts_of("hermes", *text) == parts, "character by character"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("Hello {}", ["Hello {}"]),
        ('{"name": "get", "parameters": {"a": 1}}', [CALLED]),
        (' \n{"name": "put", "parameters": {}}\n', [Call("put", "{}")]),
        ('{"name": "rm", "parameters": {}}', ['{"name": "rm", "parameters": {}}']),
        ('{"name": "get", "parameters": {"a"', ['{"name": "get", "parameters": {"a"']),
        ('{"a": 1} is it', ['{"a": 1} is it']),
    ],
)
def test_llama(text: str, parts: list[str | Call]) -> None:
    assert parts_of("llama", text) == parts == parts_of("llama", *text)


PIECES = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            '{"name": "get", "arguments": {}}',
            '"',
            "{",
            " ",
            "\n",
            "text",
            "<",
            GET,
        ]
    ),
    max_size=9,
)


@given(PIECES, st.lists(st.integers(0, 200), max_size=6))
def test_it_does_not_matter_how_the_text_is_cut(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    cut = [text[begin:end] for begin, end in pairwise(places)]
    assert parts_of("hermes", *cut) == parts_of("hermes", text) == parts_of("hermes", *text)


def test_text_is_not_held_back_for_long() -> None:
    parser = new_parser("hermes", NAMES)
    assert parser.push("Hello <b> wor") == ["Hello <b> wor"]
    assert parser.push("ld <tool") == ["ld"]
    assert parser.push("s>") == [" <tools>"]


def test_syntaxes_of_templates() -> None:
    assert syntax_of(None) is None
    assert syntax_of("{{ messages }}") is None
    assert syntax_of("{% if tools %}<tool_call>{% endif %}") == "hermes"
    assert syntax_of("{% if tools %}{{ message.tool_calls }}" + json.dumps({"parameters": 1})) == "llama"
    assert syntax_of("{% if tools %}[TOOL_CALLS]{% endif %}") is None
