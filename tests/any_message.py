"""Any message of any type, made of what its fields may hold."""

from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from pipeline.messages import Grammar, StepHandle
from pipeline.messages.stand_ins import TAKES_ALL, RecordedStep

INT64 = st.integers(-(2**63), 2**63 - 1)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: INT64,
    float: st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    bool: st.booleans(),
    NoneType: st.none(),
}


def any_message(kind: type) -> st.SearchStrategy[Any]:
    """Of a type that a link carries."""
    return of_struct(RecordedStep if kind is StepHandle else kind)


def of_struct(kind: type) -> st.SearchStrategy[Any]:
    if kind is Grammar:  # its text is checked where a request comes in
        return st.sampled_from(
            [Grammar("json", "{}"), Grammar("regex", "a|b"), Grammar("choice", '["a","b"]')]
        )
    fields = {field.name: of_type(field.type) for field in msgspec.structs.fields(kind)}
    return st.fixed_dictionaries(fields).map(lambda values: kind(**values))


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """What a field of this type may hold."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin in (Union, UnionType):
        return st.one_of(*map(of_type, args))
    if origin is Literal:
        return st.sampled_from(args)
    if origin is list or (origin is tuple and args[-1] is Ellipsis):
        return st.lists(of_type(args[0]), max_size=4).map(origin)
    if origin is tuple:
        return st.tuples(*map(of_type, args))
    if origin is dict:
        return st.dictionaries(*map(of_type, args), max_size=3)
    return _of_class(kind)


def _of_class(kind: Any) -> st.SearchStrategy[Any]:
    if issubclass(kind, msgspec.Struct):
        return of_struct(kind)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    if issubclass(kind, tuple):
        return st.tuples(*map(of_type, get_type_hints(kind).values())).map(lambda values: kind(*values))
    assert kind.__module__ == "pipeline.messages.requests", f"{kind} is data, and not known here"
    return st.just(TAKES_ALL)
