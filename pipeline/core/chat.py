"""A chat template: messages in, one text out. Jinja2 in the sandbox and dialect of Hugging Face transformers.

Knows no tokenizer; core.prompts makes ids of the text.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pipeline.core.image_tokens import pieces
from pipeline.errors import ModelError, RequestError
from pipeline.messages import ChatMessage, ImagePart

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles a client may use. Others are refused: many templates make a marker of the role's text."""


class ChatTemplate:
    """A model's compiled template. Rendering is pure and may run in any thread.

    Args:
        source: Jinja2; ModelError if it does not compile.
        variables: what the template may ask for beside the messages, e.g. bos_token.
        strftime: the local time in a given format, for templates that state the date.
        max_chars: bound of a rendered text.
        image_marker: what stands for an image in a text; empty: the model reads none.
    """

    def __init__(
        self,
        source: str,
        variables: dict[str, str],
        strftime: Callable[[str], str],
        max_chars: int,
        image_marker: str = "",
    ) -> None:
        self.source = source
        self._variables = variables
        self._max_chars = max_chars
        self._image_marker = image_marker
        self._takes_parts = False
        environment = _environment(strftime)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the chat template, line {error.lineno}: {error.message}") from error
        if image_marker:
            self._takes_parts = self._writes_markers()

    def render(self, messages: Sequence[ChatMessage], tools: list[Any] | None = None) -> str:
        """The conversation up to where the answer begins. RequestError if the template refuses it."""
        plain = [_plain(message) | {"content": self._content(message)} for message in messages]
        parts: list[str] = []
        num_chars = 0
        try:
            for part in self._template.generate(
                messages=plain, tools=tools, documents=None, add_generation_prompt=True, **self._variables
            ):
                num_chars += len(part)
                if num_chars > self._max_chars:
                    break
                parts.append(part)
        except Exception as error:  # a template is a program: whatever it raises is about these messages
            raise RequestError(
                f"The model's chat template refuses these messages: {error}",
                param="messages",
                code="chat_template",
            ) from error
        if num_chars > self._max_chars:
            raise RequestError(
                f"The model's chat template makes more than {self._max_chars} characters of these messages.",
                param="messages",
                code="chat_template",
            )
        return "".join(parts)

    def _writes_markers(self) -> bool:
        """Whether it makes a marker of a part that is an image; else contents must be texts."""
        self._takes_parts = True
        image = ImagePart(0, "")
        try:
            return self._image_marker in self.render([ChatMessage("user", "a", images=(image,))])
        except RequestError:
            return False

    def _content(self, message: ChatMessage) -> str | list[dict[str, str]]:
        """As transformers' processors have it; where it takes texts, images are their markers in these."""
        texts = pieces(message)
        if not self._takes_parts:
            return self._image_marker.join(texts)
        parts: list[dict[str, str]] = []
        for index, text in enumerate(texts):
            parts += [{"type": "image"}] if index else []
            parts += [{"type": "text", "text": text}] if text else []
        return parts


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """RequestError if there are none, or a role is unknown."""
    if not messages:
        raise RequestError("messages is empty: it must hold at least one message.", param="messages")
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise RequestError(
                f"messages[{index}].role is {message.role[:40]!r}; it must be one of {', '.join(ROLES)}.",
                param="messages",
            )


def _plain(message: ChatMessage) -> dict[str, Any]:
    """As Hugging Face's templates take it: a call's arguments are an object, not its JSON."""
    plain: dict[str, Any] = {"role": message.role}
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    return plain


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks answers for training: here its body alone counts."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _environment(strftime: Callable[[str], str]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja2's own escapes HTML characters."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
