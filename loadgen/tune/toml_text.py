"""Writes TOML (toml.io, v1.0): all that `tomllib` reads but dates. Comments are not kept."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dumps(table: Mapping[str, Any]) -> str:
    """The text that `tomllib.loads` reads as `table`.

    Raises:
        TypeError: a value is no str, bool, int, float, list or dict with string keys.
    """
    return "\n".join(_table(table, ())).lstrip("\n") + "\n"


def value_text(value: Any) -> str:
    """One value on one line. Raises TypeError for a type that TOML does not have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # 1e+16, inf and nan are TOML as they are
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {value_text(item)}' for key, item in value.items())}}}"
    raise TypeError(f"{type(value).__name__} has no form in TOML here")


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Plain values first: what follows a header belongs to that header's table."""
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    if path and (len(tables) < len(table) or not table):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in table.items():
        if key not in tables:
            yield f"{_key(key)} = {value_text(value)}"
    for key, value in tables.items():
        yield from _table(value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    """JSON's escapes are TOML's, but for DEL, which TOML wants escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
