"""Comparison: what two stages say, as it comes, against an equivalence. What both have said is forgotten."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from pipeline.runtime.equivalence import Equivalence, Fact, Key

Side = Literal["a", "b"]
NOTHING = "nothing"
_SHOWN_CHARS, _SHOWN_ITEMS = 24, 6


class Difference(msgspec.Struct, frozen=True):
    """Where two stages first differ under one key of the equivalence."""

    what: str
    """The key; the path of a field, where only that differs."""
    request_id: int | None
    position: int
    """Items of the key (characters, tokens, messages) before it, which are alike."""
    a: str
    b: str
    """What each says from there on: escaped, so that half characters and white space show."""

    def __str__(self) -> str:
        request = "" if self.request_id is None else f"request {self.request_id}, "
        return f"{request}{self.what}, after {self.position} alike: a {self.a}, b {self.b}"


class Comparison:
    """Two sides of one equivalence. Holds what one side is ahead of the other, and what differs.

    They may speak in turns, or one after the other.
    """

    def __init__(self, equivalence: Equivalence) -> None:
        self._facts = equivalence.facts
        self._keys: dict[Key, _Sayings] = {}
        self._counts: dict[Key, int] = {}
        """How much more has been counted by a."""
        self.num_messages = {"a": 0, "b": 0}

    def a(self, message: object) -> None:
        """This side has given a message."""
        self.say("a", self._facts(message))

    def b(self, message: object) -> None:
        self.say("b", self._facts(message))

    def say(self, side: Side, facts: Iterable[Fact]) -> None:
        """Those of one message."""
        self.num_messages[side] += 1
        for key, part in facts:
            if isinstance(part, int):
                self._count(key, part if side == "a" else -part)
            elif part:
                self._follow(key, side, part)

    def found(self) -> list[Difference]:
        """What differs whatever else is said, as it was found."""
        return [said.difference for said in self._keys.values() if said.difference is not None]

    def differences(self) -> list[Difference]:
        """What differs if no more is said: what only one has said, too."""
        left = [
            _left(key, said) for key, said in self._keys.items() if said.difference is None and said.items
        ]
        return [*self.found(), *left, *(_miscounted(key, more) for key, more in self._counts.items())]

    def _count(self, key: Key, more: int) -> None:
        more += self._counts.pop(key, 0)
        if more:
            self._counts[key] = more

    def _follow(self, key: Key, side: Side, items: list[Any]) -> None:
        said = self._keys.setdefault(key, _Sayings(side))
        said.add(key, side, items)
        if said.is_settled and key.request_id is not None and not isinstance(items[-1], (str, int)):
            del self._keys[key]  # else there would be one for each request that ever was


@dataclass(slots=True)
class _Sayings:
    """Of one key: what one side has said and the other has not yet."""

    side: Side
    items: list[Any] = field(default_factory=list)
    position: int = 0
    difference: Difference | None = None

    @property
    def is_settled(self) -> bool:
        return not self.items and self.difference is None

    def add(self, key: Key, side: Side, items: list[Any]) -> None:
        if self.difference is not None:
            return
        if side == self.side or not self.items:
            self.side = side
            self.items += items
            return
        num_alike = _num_alike(self.items, items)
        self.position += num_alike
        ours, theirs = self.items[num_alike:], items[num_alike:]
        if ours and theirs:
            pair = (ours, theirs) if self.side == "a" else (theirs, ours)
            self.difference = _differ(key, self.position, *pair)
        elif theirs:
            self.side = side
        self.items = ours or theirs


def _num_alike(a: list[Any], b: list[Any]) -> int:
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next(index for index in range(length) if a[index] != b[index])


def _left(key: Key, said: _Sayings) -> Difference:
    return _differ(key, said.position, *((said.items, []) if said.side == "a" else ([], said.items)))


def _miscounted(key: Key, more: int) -> Difference:
    a, b = (f"{more} more", "") if more > 0 else ("", f"{-more} more")
    return Difference(key.what, key.request_id, 0, a or "fewer", b or "fewer")


def _differ(key: Key, position: int, a: list[Any], b: list[Any]) -> Difference:
    path = ""
    if a and b:
        path, at_a, at_b = _apart(a[0], b[0])
        if path:
            return Difference(key.what + path, key.request_id, position, _shown(at_a), _shown(at_b))
    return Difference(key.what, key.request_id, position, _shown_run(a), _shown_run(b))


def _apart(a: Any, b: Any, path: str = "") -> tuple[str, Any, Any]:
    """Where in two values that differ, and what each has there."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        name = next(name for name in a if a[name] != b[name])
        return _apart(a[name], b[name], f"{path}.{name}")
    if isinstance(a, list) and isinstance(b, list):
        index = _num_alike(a, b)
        if index < len(a) and index < len(b):
            return _apart(a[index], b[index], f"{path}[{index}]")
        return f"{path}[{index}:]", a[index:], b[index:]
    return path, a, b


def _shown_run(items: list[Any]) -> str:
    """The first items; characters as one text."""
    if not items:
        return NOTHING
    text = ""
    for item in items[:_SHOWN_CHARS]:
        if not isinstance(item, str):
            break
        text += item
    rest = [] if len(text) == _SHOWN_CHARS else items[len(text) : len(text) + _SHOWN_ITEMS]
    shown = [ascii(text)] * bool(text) + [_shown(item) for item in rest]
    return " ".join(shown) + (" ..." if len(text) + len(rest) < len(items) else "")


def _shown(value: Any) -> str:
    """In ASCII, cut short."""
    text = ascii(value)
    return text if len(text) <= 120 else f"{text[:120]} ..."
