"""Chat messages of a request body: roles and text. What a template makes of them is tokenize's matter."""

from pipeline.core.wire.fields import Fields, wrong, wrong_content
from pipeline.core.wire.images import ImageKind, ImageLimits, parse_image
from pipeline.core.wire.tool_messages import parse_calls, parse_result
from pipeline.errors import RequestError
from pipeline.messages import ChatMessage, ImagePart

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


_IMAGE_KINDS: dict[str, ImageKind] = {"messages": "image_url", "input": "input_image"}


def parse_messages(
    value: object, *, has_tools: bool = False, images: ImageLimits | None = None, name: str = "messages"
) -> list[ChatMessage]:
    """`messages` of a body. Raises RequestError that names the message by its index.

    Args:
        has_tools: calls, and messages of tools, are allowed among them.
        images: None: the endpoint, or its model, reads text only.
        name: of the field: `input` of a response.
    """
    if not isinstance(value, list) or not value:
        raise wrong_content(name, "a list of at least one message", value)
    if len(value) > MAX_PIECES or len(value) + sum(map(_num_parts, value)) > MAX_PIECES:
        raise wrong(name, f"at most {MAX_PIECES} messages and parts together", value)
    reader = _Reader(has_tools, _IMAGE_KINDS[name], images)
    return [reader.message(f"{name}[{index}]", item) for index, item in enumerate(value)]


def _num_parts(item: object) -> int:
    content = item.get("content") if isinstance(item, dict) else None
    return len(content) if isinstance(content, list) else 0


class _Reader:
    """Of one request's messages."""

    def __init__(self, has_tools: bool, image_kind: ImageKind, images: ImageLimits | None) -> None:
        self._has_tools = has_tools
        self._image_kind = image_kind
        self._images = images

    def message(self, path: str, item: object) -> ChatMessage:
        if not isinstance(item, dict):
            raise wrong_content(path, "an object with role and content", item)
        fields = Fields(item, path + ".")
        role = fields.take("role")
        if self._has_tools and role == "tool":
            return parse_result(fields, self._text(path + ".content", fields.take("content")))
        if not isinstance(role, str) or role not in ROLES:
            raise wrong(path + ".role", f"one of {', '.join(ROLES)}", role)
        calls = parse_calls(fields) if self._has_tools and role == "assistant" else ()
        said = fields.take("content")
        content, images = (
            self._content(path + ".content", said) if said is not None or not calls else ("", ())
        )
        fields.finish(_NEUTRAL)
        if images and role != "user":
            raise RequestError(
                f"'{images[0].field}' is an image in a message of the {role}, which must be text.",
                param=images[0].field,
                code="invalid_value",
            )
        return ChatMessage(ROLES[role], content, calls, images=images)

    def _text(self, name: str, value: object) -> str:
        content, images = self._content(name, value)
        if images:
            raise RequestError(
                f"'{images[0].field}' is an image in a tool's result, which must be text.",
                param=images[0].field,
                code="invalid_value",
            )
        return content

    def _content(self, name: str, value: object) -> tuple[str, tuple[ImagePart, ...]]:
        """The text, and the images in it."""
        if isinstance(value, str):
            return value, ()
        if not isinstance(value, list) or not value:
            raise wrong_content(name, "a string or a list of parts", value)
        texts: list[str] = []
        images: list[ImagePart] = []
        at = 0
        for index, item in enumerate(value):
            part = self._part(f"{name}[{index}]", item, at)
            if isinstance(part, ImagePart):
                images.append(part)
            else:
                texts.append(part)
                at += len(part)
        return "".join(texts), tuple(images)

    def _part(self, name: str, item: object, at: int) -> str | ImagePart:
        if not isinstance(item, dict):
            raise wrong_content(name, 'an object {"type": "text", "text": ...}', item)
        fields = Fields(item, name + ".")
        kind = fields.take("type")
        if kind == self._image_kind:
            return parse_image(name, self._image_kind, fields, self._images, at)
        if kind != "text":
            allowed = (
                '"text" (this model reads text only)'
                if self._images is None
                else f'"text" or "{self._image_kind}"'
            )
            raise wrong(name + ".type", allowed, kind)
        text = fields.text("text")
        if text is None:
            raise RequestError(f"'{name}.text' is missing.", param=name + ".text", code="missing_field")
        fields.finish({})
        return text
