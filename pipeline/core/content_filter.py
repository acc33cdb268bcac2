"""The content filter: one request's text on its way out, in pieces, against rules.

What leaves is the same however the text is cut into pieces: a piece is held back from the first place at
which a match may be growing (core.growing), and no longer. A match is the leftmost one, as in a search of the
whole text.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from pipeline.core.growing import growing

_CLEANED = dict.fromkeys(
    [
        *(code for code in range(0x20) if chr(code) not in "\t\n\r"),
        *range(0x7F, 0xA0),
        *range(0x200B, 0x2010),  # no width, and marks of direction
        *range(0x202A, 0x202F),  # embeddings and overrides of direction
        *range(0x2060, 0x2070),
        0xFEFF,
        *range(0xE0000, 0xE0080),  # tags: invisible letters
    ]
)
"""Characters that a reader does not see: what hides a word from a rule, or turns a text around."""


class Rule(NamedTuple):
    """An expression, and what becomes of its matches."""

    pattern: str
    action: Literal["redact", "stop"]
    replacement: str = ""
    ignore_case: bool = False


class Match(Protocol):
    lastgroup: str | None

    def start(self) -> int: ...

    def end(self) -> int: ...


class Pattern(Protocol):
    def search(self, text: str, pos: int, /) -> Match | None: ...


Compile = Callable[[str], Any]


class Rules:
    """Rules that hold together; where two match at the same place, the first named wins.

    Args:
        compile_pattern: of an engine whose time grows with the text only. Raises what it raises.
    """

    def __init__(self, rules: Sequence[Rule], compile_pattern: Compile) -> None:
        self._rules = {f"r{number}": rule for number, rule in enumerate(rules)}
        begun = [_cased(growing(rule.pattern), rule) for rule in rules]
        named = (f"(?P<{name}>{_cased(rule.pattern, rule)})" for name, rule in self._rules.items())
        self.match: Pattern = compile_pattern("|".join(named))
        self.begun: Pattern = compile_pattern(rf"(?:{'|'.join(begun)})\z")

    def rule_of(self, match: Match) -> Rule:
        return self._rules[match.lastgroup or ""]


def _cased(pattern: str, rule: Rule) -> str:
    return f"(?{'i' if rule.ignore_case else ''}:{pattern})"


class ContentFilter:
    """One request's text.

    Args:
        rules: None: only characters are cleaned.
        cleans: characters that nobody sees are left out, before rules look.
        before, held: of another one of the same text, which may have had other rules: what it held back is
            judged by these, as if it came next; what has left is not looked at again.
    """

    def __init__(self, rules: Rules | None, *, cleans: bool, before: str = "", held: str = "") -> None:
        self._rules = rules
        self._cleans = cleans
        self._text = before + (held.translate(_CLEANED) if cleans else held)
        """One character that has left, for word boundaries, then what is held back."""
        self._at = len(before)
        """Where that begins."""
        self.stopped_by: Rule | None = None

    @property
    def has_rules(self) -> bool:
        return self._rules is not None

    @property
    def before(self) -> str:
        """The last character that has left."""
        return self._text[: self._at]

    @property
    def held(self) -> str:
        """What a match may begin with."""
        return self._text[self._at :]

    def push(self, text: str) -> str:
        """What may leave of the text so far. Nothing once a rule has stopped it."""
        if self._cleans and text:
            text = text.translate(_CLEANED)
        if self._rules is None:
            return self._let_go(text)
        self._text += text
        return self._take(self._rules, is_last=False)

    def flush(self) -> str:
        """The text has ended."""
        return self._let_go("") if self._rules is None else self._take(self._rules, is_last=True)

    def _let_go(self, text: str) -> str:
        """And all that another one's rules have held: there is none now."""
        out = self._text[self._at :] + text
        if out:
            self._text, self._at = out[-1], 1
        return out

    def _take(self, rules: Rules, *, is_last: bool) -> str:
        out: list[str] = []
        while self.stopped_by is None:
            begun = None if is_last else rules.begun.search(self._text, self._at)
            until = len(self._text) if begun is None else begun.start()
            match = rules.match.search(self._text, self._at)
            if match is None or (match.start() >= until and not is_last):
                out.append(self._text[self._at : until])
                self._at = until
                break
            out += (self._text[self._at : match.start()], self._apply(rules.rule_of(match)))
            self._at = match.end()
        kept = max(0, self._at - 1)
        self._text, self._at = self._text[kept:], self._at - kept
        return "".join(out)

    def _apply(self, rule: Rule) -> str:
        """What stands in the match's place."""
        if rule.action == "redact":
            return rule.replacement
        self.stopped_by = rule
        return ""
