"""Reshaping: JSON that clients sent, as JSON of the same shape that says nothing of it."""

from typing import Any

import msgspec

from pipeline.messages.prose import Prose

_KEPT_WORDS = frozenset(
    (
        *("type", "function", "name", "description", "parameters", "strict", "arguments"),
        *("properties", "required", "items", "enum", "anyOf", "additionalProperties"),
        *("object", "array", "string", "number", "integer", "boolean", "null"),
    )
)
"""Of tools and schemas; they are the same for everybody."""


def reshaped(text: str, prose: Prose) -> str:
    """Numbers are 1, names of fields are aliases, texts prose. What is no JSON is text."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return prose.text(text)
    return msgspec.json.encode(_value(value, prose)).decode()


def _value(value: Any, prose: Prose) -> Any:
    if isinstance(value, dict):
        return {_name(key, prose): _value(each, prose) for key, each in value.items()}
    if isinstance(value, list):
        return [_value(each, prose) for each in value]
    if isinstance(value, str):
        return value if value in _KEPT_WORDS else prose.text(value)
    if isinstance(value, bool) or value is None:
        return value
    return 1


def _name(key: str, prose: Prose) -> str:
    return key if key in _KEPT_WORDS else prose.alias(key)
