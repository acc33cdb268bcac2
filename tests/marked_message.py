"""Messages whose every text, number and byte string is a mark of its own, to see which of them are kept."""

from collections.abc import Iterator
from enum import Enum
from itertools import count
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from pipeline.messages import Grammar, StepHandle
from pipeline.messages.stand_ins import TAKES_ALL, RecordedStep


class Marks:
    """Makes messages; `places` says in which field of which struct each mark was put."""

    def __init__(self) -> None:
        self.places: dict[object, str] = {}
        self._numbers = count(10**12)

    def message(self, kind: Any) -> Any:
        return self._struct(RecordedStep if kind is StepHandle else kind)

    def _struct(self, kind: Any) -> Any:
        if kind is Grammar:
            return Grammar("json", f'{{"{self._mark(str, "Grammar.text")}": 1}}')
        fields = msgspec.structs.fields(kind)
        return kind(**{field.name: self._of(field.type, f"{kind.__name__}.{field.name}") for field in fields})

    def _of(self, kind: Any, place: str) -> Any:
        origin, args = get_origin(kind), get_args(kind)
        if kind in (int, str, bytes, float, bool):
            return self._mark(kind, place)
        if origin in (Union, UnionType):
            return self._of(args[0], place)
        if origin is Literal:
            return args[-1]
        if origin is list or (origin is tuple and args[-1] is Ellipsis):
            return origin(self._of(args[0], place) for _ in range(2))
        if origin is tuple:
            return tuple(self._of(each, place) for each in args)
        if origin is dict:
            return {self._of(args[0], f"{place} (key)"): self._of(args[1], place)}
        return self._of_class(kind, place)

    def _of_class(self, kind: Any, place: str) -> Any:
        if issubclass(kind, msgspec.Struct):
            return self._struct(kind)
        if issubclass(kind, Enum):
            return next(iter(kind))
        if issubclass(kind, tuple):
            hints = get_type_hints(kind).items()
            return kind(*(self._of(each, f"{kind.__name__}.{name}") for name, each in hints))
        return TAKES_ALL

    def _mark(self, kind: type, place: str) -> Any:
        number = next(self._numbers)
        mark: Any = {int: number, str: f"mark {number}", bytes: b"mark %d" % number, bool: True}.get(kind)
        if kind is float:
            mark = -number / 8
        if kind is not bool:
            self.places[mark] = place
        return mark

    def kept(self, message: object) -> set[str]:
        """Where the marks that the message still holds were put."""
        return {self.places[leaf] for leaf in _leaves(message) if leaf in self.places}


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        yield from value
        value = value.values()
    if isinstance(value, str | bytes | int | float):
        yield value
    elif hasattr(value, "__iter__"):
        for each in value:
            yield from _leaves(each)
