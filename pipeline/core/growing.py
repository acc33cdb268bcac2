"""Of a regular expression, the expression of what may still become a match: its matches' proper prefixes.

A filter of streamed text must hold back what could be the beginning of a match, and no more. For literals
that is a question of comparing; for expressions it is another expression, made from the parts of the first:
a prefix of AB is one of A, or a whole A with a prefix of B; one of A{2,5} is up to four As and a prefix of A.
What an end or a word boundary says depends on what comes next, so there a whole match is held back too.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.errors import ConfigError

# Python's own parser is the only part of `re` that is used here; it has no public name
_parser: Any = re._parser  # type: ignore[attr-defined]

NEVER = r"[^\x00-\x{10FFFF}]"
"""Matches nothing."""
_AT = {
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": r"\A",
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
    "AT_END": "$",
    "AT_END_STRING": r"\z",
}
_CATEGORY = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def growing(pattern: str) -> str:
    """The expression, for an engine without back references (RE2), that matches text which ends at its end.

    Raises ConfigError for what no such engine can do, and for an expression that matches the empty text.
    """
    try:
        parsed = _parser.parse(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from error
    if parsed.state.flags & ~re.UNICODE:
        raise ConfigError(f"{pattern!r} has flags inside: say ignore_case instead")
    if parsed.getwidth()[0] == 0:
        raise ConfigError(f"{pattern!r} matches the empty text: it would match everywhere")
    _texts(parsed)  # says what is not possible, wherever it stands
    return _prefixes(list(parsed))


def _prefixes(nodes: Sequence[Any]) -> str:
    # nested, so that the size stays linear: (?:pre(A)|A(?:pre(B)|B ...))
    if not nodes:
        return NEVER
    first, rest = nodes[0], nodes[1:]
    alone = _prefixes_of(first)
    return alone if not rest else f"(?:{alone}|{_text(first)}{_prefixes(rest)})"


def _prefixes_of(node: Any) -> str:
    """Of the matches of one node."""
    kind, value = str(node[0]), node[1]
    if kind == "AT":
        return NEVER if "BEGINNING" in str(value) else ""
    if kind == "BRANCH":
        return "(?:" + "|".join(_prefixes(list(each)) for each in value[1]) + ")"
    if kind == "SUBPATTERN":
        return _prefixes(list(value[3]))
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        _, most, item = value
        whole = f"(?:{_texts(item)})"
        count = "*" if most is _parser.MAXREPEAT else f"{{0,{most - 1}}}"
        return f"(?:{whole}{count}{_prefixes(list(item))})"
    return ""  # of a single character: nothing yet


def _texts(nodes: Iterable[Any]) -> str:
    return "".join(map(_text, nodes))


def _text(node: Any) -> str:
    """The node as an expression again."""
    kind, value = str(node[0]), node[1]
    if kind == "LITERAL":
        return _char(value)
    if kind == "NOT_LITERAL":
        return f"[^{_char(value)}]"
    if kind == "ANY":
        return "."
    if kind == "IN":
        return "[" + "".join(map(_member, value)) + "]"
    if kind == "AT":
        return _AT[str(value)]
    if kind == "BRANCH":
        return "(?:" + "|".join(_texts(each) for each in value[1]) + ")"
    if kind == "SUBPATTERN" and not (value[1] or value[2]):
        return f"(?:{_texts(value[3])})"
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, item = value
        upper = "" if most is _parser.MAXREPEAT else most
        return f"(?:{_texts(item)}){{{least},{upper}}}" + ("?" if kind == "MIN_REPEAT" else "")
    raise ConfigError(
        f"{kind.lower().replace('_', ' ')} is not possible in time that grows with the text only"
    )


def _member(node: Any) -> str:
    kind, value = str(node[0]), node[1]
    if kind == "NEGATE":
        return "^"
    if kind == "RANGE":
        return f"{_char(value[0])}-{_char(value[1])}"
    return _CATEGORY[str(value)] if kind == "CATEGORY" else _char(value)


def _char(code: int) -> str:
    return f"\\x{{{code:x}}}"
