"""What the OpenAPI document says of tools, which depends on whether the model knows any."""

from pipeline.core.wire.chat import ROLES
from pipeline.core.wire.limits import Limits
from pipeline.core.wire.openapi_values import Schema, a_flag, an_object, or_null
from pipeline.core.wire.tool_messages import MAX_CALLS
from pipeline.core.wire.tools import MAX_TOOLS

_WORD: Schema = {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,128}$"}
_CALL: Schema = {
    "type": "object",
    "properties": {
        "id": _WORD,
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": _WORD, "arguments": {"type": "string", "description": "A JSON object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        },
    },
    "required": ["id", "type", "function"],
    "additionalProperties": False,
}


def a_message(limits: Limits, content: Schema) -> Schema:
    """Of a chat: said by somebody, calls of tools, or what one of them answered."""
    said = an_object({"role": {"enum": list(ROLES)}, "content": content}, ["role", "content"])
    called = {
        "role": {"const": "assistant"},
        "content": or_null(content),
        "tool_calls": {"type": "array", "items": _CALL, "minItems": 1, "maxItems": MAX_CALLS},
    }
    result = {"role": {"const": "tool"}, "tool_call_id": _WORD, "content": content}
    if limits.tool_syntax is None:
        return said
    return {"anyOf": [said, an_object(called, ["role", "tool_calls"]), an_object(result, list(result))]}


def tool_fields(limits: Limits) -> Schema:
    if limits.tool_syntax is None:
        return {"tools": or_null({"type": "array", "maxItems": 0}), "tool_choice": or_null({"const": "none"})}
    function = {
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"], "description": "A JSON Schema"},
        "strict": a_flag(),
    }
    tool = an_object(
        {"type": {"const": "function"}, "function": an_object(function, ["name"])}, ["type", "function"]
    )
    named = an_object({"name": function["name"]}, ["name"])
    choice = an_object({"type": {"const": "function"}, "function": named}, ["type", "function"])
    return {
        "tools": or_null({"type": "array", "items": tool, "maxItems": MAX_TOOLS}),
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required", None]}, choice]},
        "parallel_tool_calls": a_flag(),
    }
