"""What an answer must be, as clients say it."""

import json
from typing import Any

import pytest

from pipeline.core.wire import Limits, parse_chat, parse_completion, wanted_of
from pipeline.errors import RequestError
from pipeline.messages import Grammar

LIMITS = Limits("m", 100, 300)
SCHEMA = {"type": "object", "properties": {"\u00fc": {"type": "integer"}}}


def grammar_of(**fields: Any) -> tuple[Grammar | None, str]:
    body = {"messages": [{"role": "user", "content": "x"}]} | fields
    (wanted,) = parse_chat(json.dumps(body).encode(), LIMITS, 1)
    return wanted.sampling.grammar, wanted.grammar_field


@pytest.mark.parametrize(
    ("field", "value", "kind", "text", "name"),
    [
        ("response_format", {"type": "json_object"}, "json", '{"type":"object"}', ""),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
            "json",
            json.dumps(SCHEMA, separators=(",", ":"), ensure_ascii=False),
            ".json_schema.schema",
        ),
        ("structured_outputs", {"json": {}}, "json", "{}", ".json"),
        ("structured_outputs", {"json": '{"a": 1}'}, "json", '{"a":1}', ".json"),
        ("structured_outputs", {"regex": "a+", "json": None}, "regex", "a+", ".regex"),
        ("structured_outputs", {"choice": ["a", 'b"']}, "choice", '["a","b\\""]', ".choice"),
        ("structured_outputs", {"grammar": 'start: "a"'}, "lark", 'start: "a"', ".grammar"),
    ],
)
def test_it_becomes_a_grammar_at_every_door(field: str, value: Any, kind: Any, text: str, name: str) -> None:
    expected = (Grammar(kind, text), field + name)
    assert grammar_of(**{field: value}) == expected
    (wanted,) = parse_completion(json.dumps({"prompt": "x", field: value}).encode(), LIMITS, 1)
    assert (wanted.sampling.grammar, wanted.grammar_field) == expected
    wanted = wanted_of({"prompt": "x", field: value}, LIMITS, 1)
    assert (wanted.sampling.grammar, wanted.grammar_field) == expected


def test_text_asks_for_nothing() -> None:
    assert grammar_of(response_format={"type": "text"}) == (None, "")
    assert grammar_of(response_format=None, structured_outputs=None) == (None, "")
    found, _ = grammar_of(response_format={"type": "text"}, structured_outputs={"regex": "a"})
    assert found == Grammar("regex", "a")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": "json"}, "response_format", "an object"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x", "Unsupported"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "an object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
            "response_format.json_schema.schema",
            "a list of 1",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs", "holds 2"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "not empty"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "1 to 1000"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice", "is 1"),
        ({"structured_outputs": {"backend": "x"}}, "structured_outputs.backend", "Unsupported"),
        ({"structured_outputs": {"regex": "a" * 70_000}}, "structured_outputs.regex", "70000 bytes"),
        ({"structured_outputs": {"json": {"enum": ["\u00fc" * 40_000]}}}, "structured_outputs.json", "bytes"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "give one",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "ignore_eos": True},
            "ignore_eos",
            "structured_outputs.regex",
        ),
        (
            {"response_format": {"type": "json_object"}, "allowed_token_ids": [1]},
            "allowed_token_ids",
            "grammar",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: Any, param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as info:
        grammar_of(**fields)
    assert (info.value.status, info.value.param) == (400, param)
