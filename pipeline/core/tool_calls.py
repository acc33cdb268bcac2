"""Tool calls: the calls of functions that a model writes into its answer, in the syntax of its family.

Hermes 2, Qwen 2.5 and 3:  <tool_call>{"name": "f", "arguments": {...}}</tool_call>, any number of them.
Llama 3:                   {"name": "f", "parameters": {...}} as the whole answer.
"""

import json
from collections.abc import Collection
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

OPENING, CLOSING = "<tool_call>", "</tool_call>"
MAX_CALLS = 8
"""Of one answer, where a grammar says that it is calls."""

Syntax = Literal["hermes", "llama"]


class Tool(msgspec.Struct, frozen=True):
    """A function that may be called."""

    name: str
    parameters: str
    """A JSON Schema, as JSON."""


class Call(NamedTuple):
    name: str
    arguments: str
    """JSON."""


def syntax_of(template: str | None) -> Syntax | None:
    """What a chat template shows of its family; None: it knows no tools, or none in a syntax known here."""
    if template is None or "tools" not in template:
        return None
    if OPENING in template:
        return "hermes"
    return "llama" if '"parameters"' in template and "tool_calls" in template else None


def calls_grammar(syntax: Syntax, tools: Collection[Tool], *, parallel: bool) -> str:
    """In Lark's notation: an answer that is a call, or with `parallel`, where the syntax can, several."""
    key = "arguments" if syntax == "hermes" else "parameters"
    begins = [json.dumps(f'{{"name": "{tool.name}", "{key}": ') for tool in tools]
    rules = [f'call{at}: {begin} args{at} "}}"' for at, begin in enumerate(begins)]
    rules += [f"args{at}: %json {tool.parameters}" for at, tool in enumerate(tools)]
    body = " | ".join(f"call{at}" for at in range(len(tools)))
    if syntax == "llama":
        start = f"start: {body}"
    else:
        rules.append(f'tagged: "{OPENING}\\n" ({body}) "\\n{CLOSING}"')
        start = f'start: tagged ("\\n" tagged){{0,{MAX_CALLS - 1}}}' if parallel else "start: tagged"
    return "\n".join([start, *rules])


class ToolCallParser(Protocol):
    """One answer's text, in pieces: what is text of it, and its calls. It does not matter how it is cut.

    Held back is what may become a call. A call is given when it is complete; what looks like one, but is no
    JSON or names no tool, is text.
    """

    def push(self, text: str) -> list[str | Call]: ...

    def flush(self) -> list[str | Call]:
        """The text has ended."""
        ...


def new_parser(syntax: Syntax, names: Collection[str]) -> ToolCallParser:
    """`names`: of the tools."""
    return HermesParser(names) if syntax == "hermes" else LlamaParser(names)


class LlamaParser:
    """An answer that begins as an object is held until its end, and is one call or none."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._is_text = False

    def push(self, text: str) -> list[str | Call]:
        if self._is_text:
            return [text] if text else []
        self._held += text
        begin = self._held.lstrip()
        if not begin or begin.startswith("{"):
            return []
        self._is_text = True
        return self._take()

    def flush(self) -> list[str | Call]:
        call = _call(self._held, "parameters", self._names)
        return self._take() if call is None else [call]

    def _take(self) -> list[str | Call]:
        held, self._held = self._held, ""
        return [held] if held else []


class HermesParser:
    """Calls between tags. White space around them is dropped, and so is held back."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._is_after_call = False

    def push(self, text: str) -> list[str | Call]:
        self._held += text
        return self._parts(is_end=False)

    def flush(self) -> list[str | Call]:
        return self._parts(is_end=True)

    def _parts(self, *, is_end: bool) -> list[str | Call]:
        parts: list[str | Call] = []
        while (at := self._held.find(OPENING)) >= 0:
            end = _end_of_call(self._held, at)
            if end < 0 and not is_end:
                break
            self._settle(parts, at, end if end >= 0 else len(self._held))
        self._text(parts, self._num_sure(at, is_end=is_end))
        return parts

    def _settle(self, parts: list[str | Call], begin: int, end: int) -> None:
        """The tag at `begin`, and all up to `end`, is a call or text."""
        tagged = self._held[begin:end]
        call = _call(tagged.removeprefix(OPENING).removesuffix(CLOSING), "arguments", self._names)
        if call is None:
            self._text(parts, end)
            return
        after = self._held[end:]
        self._text(parts, len(self._held[:begin].rstrip()))
        parts.append(call)
        self._held, self._is_after_call = after, True

    def _num_sure(self, at: int, *, is_end: bool) -> int:
        """Characters that are text, where a tag that may begin a call is at `at`; -1: none is."""
        held = self._held
        if is_end:
            return len(held)
        if at < 0:
            at = len(held) - _num_begun(held)
        return len(held[:at].rstrip())

    def _text(self, parts: list[str | Call], size: int) -> None:
        text, self._held = self._held[:size], self._held[size:]
        if self._is_after_call:
            text = text.lstrip()
            self._is_after_call = not text
        if text:
            parts.append(text)


def _end_of_call(text: str, begin: int) -> int:
    """Where the tag at `begin` is closed; -1: it is not. A closing tag in a text of the JSON is none."""
    body = begin + len(OPENING)
    at = text.find(CLOSING, body)
    while at >= 0 and _is_inside_text(text[body:at]):
        at = text.find(CLOSING, at + 1)
    return at if at < 0 else at + len(CLOSING)


def _call(body: str, key: str, names: Collection[str]) -> Call | None:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get(key, {})
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def _is_inside_text(body: str) -> bool:
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def _num_begun(text: str) -> int:
    """Characters at the text's end that the tag may have begun with."""
    longest = min(len(text), len(OPENING) - 1)
    return next((size for size in range(longest, 0, -1) if OPENING.startswith(text[-size:])), 0)
