"""What a chat so far has of tools: an assistant's calls, and their results."""

import re

from pipeline.core.wire.fields import Fields, decode_object, wrong
from pipeline.errors import RequestError
from pipeline.messages import ChatMessage, ToolCall

MAX_CALLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


def parse_calls(fields: Fields) -> tuple[ToolCall, ...]:
    """`tool_calls` of an assistant's message."""
    value, path = fields.take("tool_calls"), fields.name("tool_calls")
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_CALLS:
        raise wrong(path, f"a list of at most {MAX_CALLS} calls", value)
    return tuple(_call(f"{path}[{index}]", item) for index, item in enumerate(value))


def parse_result(fields: Fields, content: str) -> ChatMessage:
    """A message of role `tool`."""
    call_id = _word(fields, "tool_call_id")
    fields.finish({"name": ()})
    return ChatMessage("tool", content, tool_call_id=call_id)


def _call(path: str, item: object) -> ToolCall:
    if not isinstance(item, dict):
        raise wrong(path, "a call of a function", item)
    fields = Fields(dict(item), path + ".")
    kind, call_id, function = fields.take("type"), _word(fields, "id"), fields.take("function")
    fields.finish({})
    if kind != "function" or not isinstance(function, dict):
        raise wrong(path, 'an object {"id": ..., "type": "function", "function": {...}}', item)
    inner = Fields(dict(function), path + ".function.")
    name, arguments = _word(inner, "name"), inner.text("arguments")
    inner.finish({})
    return ToolCall(call_id, name, _checked(arguments or "{}", inner.name("arguments")))


def _checked(arguments: str, name: str) -> str:
    try:
        decode_object(arguments)
    except RequestError:
        raise RequestError(
            f"'{name}' must be a string that holds a JSON object.", param=name, code="invalid_value"
        ) from None
    return arguments


def _word(fields: Fields, field: str) -> str:
    value = fields.take(field)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise wrong(fields.name(field), "1 to 128 letters, digits, _, . or -", value)
    return value
