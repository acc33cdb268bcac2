"""Chat messages of a request body: roles and text. What a template makes of them is tokenize's matter."""

from pipeline.core.wire.fields import Fields, wrong, wrong_content
from pipeline.core.wire.images import refusal_of
from pipeline.core.wire.tool_messages import parse_calls, parse_result
from pipeline.errors import RequestError
from pipeline.messages import ChatMessage

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Accepted roles and what a template gets; OpenAI's `developer` is the newer word for `system`."""

MAX_PIECES = 4096
"""Messages and text parts of one request: each costs some microseconds of the loop that all streams share."""

_NULL_ONLY: tuple[object, ...] = ()
_NEUTRAL = {
    "name": _NULL_ONLY,
    "refusal": _NULL_ONLY,
    "audio": _NULL_ONLY,
    "function_call": _NULL_ONLY,
    "tool_calls": ([],),
    "annotations": ([],),
}
"""Fields of an assistant message that clients send back as they got it."""


def parse_messages(value: object, *, has_tools: bool = False) -> list[ChatMessage]:
    """`messages` of a body. Raises RequestError that names the message by its index.

    Args:
        has_tools: calls, and messages of tools, are allowed among them.
    """
    if not isinstance(value, list) or not value:
        raise wrong_content("messages", "a list of at least one message", value)
    if len(value) > MAX_PIECES or len(value) + sum(map(_num_parts, value)) > MAX_PIECES:
        raise wrong("messages", f"at most {MAX_PIECES} messages and text parts together", value)
    return [_message(index, item, has_tools=has_tools) for index, item in enumerate(value)]


def _num_parts(item: object) -> int:
    content = item.get("content") if isinstance(item, dict) else None
    return len(content) if isinstance(content, list) else 0


def _message(index: int, item: object, *, has_tools: bool) -> ChatMessage:
    path = f"messages[{index}]"
    if not isinstance(item, dict):
        raise wrong_content(path, "an object with role and content", item)
    fields = Fields(item, path + ".")
    role = fields.take("role")
    if has_tools and role == "tool":
        return parse_result(fields, _content(path + ".content", fields.take("content")))
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(path + ".role", f"one of {', '.join(ROLES)}", role)
    calls = parse_calls(fields) if has_tools and role == "assistant" else ()
    said = fields.take("content")
    content = "" if said is None and calls else _content(path + ".content", said)
    fields.finish(_NEUTRAL)
    return ChatMessage(ROLES[role], content, calls)


def _content(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise wrong_content(name, "a string or a list of text parts", value)
    return "".join(_part(f"{name}[{index}]", item) for index, item in enumerate(value))


def _part(name: str, item: object) -> str:
    if not isinstance(item, dict):
        raise wrong_content(name, 'an object {"type": "text", "text": ...}', item)
    fields = Fields(item, name + ".")
    kind = fields.take("type")
    if kind == "image_url":
        raise refusal_of(name, fields)
    if kind != "text":
        raise wrong(name + ".type", '"text" (this model reads text only)', kind)
    text = fields.text("text")
    if text is None:
        raise RequestError(f"'{name}.text' is missing.", param=name + ".text", code="missing_field")
    fields.finish({})
    return text
