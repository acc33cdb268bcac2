"""Tools: the functions that a chat's answer may call. OpenAI's fields `tools`, `tool_choice` and so on."""

import re

import msgspec

from pipeline.core.tool_calls import Syntax, Tool, calls_grammar
from pipeline.core.wire.fields import Fields, wrong
from pipeline.core.wire.limits import Limits
from pipeline.core.wire.structured import MAX_GRAMMAR_BYTES
from pipeline.errors import RequestError
from pipeline.messages import Grammar

MAX_TOOLS = 128
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_encode = msgspec.json.Encoder().encode


class Toolset(msgspec.Struct, frozen=True):
    """What one request may call."""

    syntax: Syntax
    tools: tuple[Tool, ...]
    told: str
    """As the client sent them, for the chat template."""
    is_parallel: bool = True
    """Several calls may come."""
    grammar: Grammar | None = None
    """Where the answer has to be calls."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)


def parse_tools(fields: Fields, limits: Limits) -> Toolset | None:
    """None: there are none, or none are to be called, and then the model is told of none."""
    value, choice = fields.take("tools"), fields.take("tool_choice")
    is_parallel = fields.maybe_flag("parallel_tool_calls") is not False
    if value in (None, []):
        if choice not in (None, "none", "auto"):
            raise RequestError("'tool_choice' needs 'tools'.", param="tool_choice", code="invalid_value")
        return None
    if limits.tool_syntax is None:
        raise RequestError(
            f"The chat template of {limits.model} knows no tools, or writes calls in a way not known here.",
            param="tools",
            code="tools_not_supported",
        )
    tools, told = _tools(value), _encode(value).decode()
    if len(told) > MAX_GRAMMAR_BYTES:
        raise wrong("tools", f"at most {MAX_GRAMMAR_BYTES} bytes of JSON", value)
    if choice == "none":
        return None
    grammar = None
    if choice not in (None, "auto"):
        chosen = tools if choice == "required" else [_named(tools, choice)]
        source = calls_grammar(limits.tool_syntax, chosen, parallel=is_parallel and choice == "required")
        grammar = Grammar("lark", source)
    return Toolset(limits.tool_syntax, tuple(tools), told, is_parallel, grammar)


def _tools(value: object) -> list[Tool]:
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise wrong("tools", f"a list of at most {MAX_TOOLS} tools", value)
    tools = [_tool(f"tools[{index}]", item) for index, item in enumerate(value)]
    if len({tool.name for tool in tools}) < len(tools):
        raise RequestError("'tools' has two of the same name.", param="tools", code="invalid_value")
    return tools


def _tool(path: str, item: object) -> Tool:
    if not isinstance(item, dict):
        raise wrong(path, 'an object {"type": "function", "function": {...}}', item)
    fields = Fields(dict(item), path + ".")
    kind, function = fields.take("type"), fields.take("function")
    fields.finish({})
    if kind != "function":
        raise wrong(path + ".type", '"function" (no other tools are built)', kind)
    if not isinstance(function, dict):
        raise wrong(path + ".function", "an object with a name", function)
    return _function(Fields(dict(function), path + ".function."))


def _function(fields: Fields) -> Tool:
    name, parameters = fields.take("name"), fields.take("parameters")
    fields.text("description")
    fields.maybe_flag("strict")  # where a call is asked for it is as the schema says, either way
    fields.finish({})
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise wrong(fields.name("name"), "1 to 64 letters, digits, _ or -", name)
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise wrong(fields.name("parameters"), "a JSON Schema, which is an object", parameters)
    return Tool(name, _encode({"type": "object", **parameters}).decode())


def _named(tools: list[Tool], choice: object) -> Tool:
    expected = '"none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
    if not isinstance(choice, dict):
        raise wrong("tool_choice", expected, choice)
    fields = Fields(dict(choice), "tool_choice.")
    kind, function = fields.take("type"), fields.take("function")
    fields.finish({})
    if kind != "function" or not isinstance(function, dict):
        raise wrong("tool_choice", expected, choice)
    found = next((tool for tool in tools if tool.name == function.get("name")), None)
    if found is None:
        raise wrong("tool_choice.function.name", "the name of one of 'tools'", function.get("name"))
    return found
