"""Paths in what is told to another process as msgpack, which has none: hooks for msgspec."""

from pathlib import Path
from typing import Any


def path_as_text(value: object) -> str:
    """An enc_hook. Any other type is an error of whoever sends it, as msgspec wants it said."""
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"a {type(value).__name__} has no words")


def path_of_text(kind: type, value: Any) -> Any:
    """A dec_hook."""
    if issubclass(kind, Path):
        return kind(value)
    raise NotImplementedError(f"no words make a {kind.__name__}")
