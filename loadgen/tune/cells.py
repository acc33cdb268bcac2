"""Which configurations are tried: the base, and each other value of each variable alone. Pure."""

import copy
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec

from loadgen.errors import UsageError
from loadgen.tune.toml_text import value_text

Value = str | int | float | bool


class Variable(msgspec.Struct, frozen=True):
    """A setting and the values that it is given."""

    key: str
    """Its place in the file, such as device.max_num_seqs."""
    values: tuple[Value, ...]


class Cell(msgspec.Struct, frozen=True):
    """One configuration."""

    config: dict[str, Any]
    variable: str | None
    """What differs from the base; None: this is the base."""
    value: Value | None

    @property
    def name(self) -> str:
        return "the base" if self.variable is None else f"{self.variable} = {text(self.value)}"


class Grid(msgspec.Struct, frozen=True):
    """All cells, the base first, and the base's value of each variable."""

    cells: list[Cell]
    variables: list[Variable]
    """With the base's value among the values."""
    base_values: dict[str, Value]
    notes: list[str]


def parse_variable(argument: str) -> Variable:
    """`device.max_num_seqs=8,16,32`: values as TOML writes them; what is no TOML is a string.

    Raises:
        UsageError: no key, no value, or one value twice.
    """
    key, equals, rest = argument.partition("=")
    values = tuple(_value(part.strip()) for part in rest.split(","))
    if not equals or not all(key.split(".")) or "" in values:
        raise UsageError(f"--vary {argument}: expected KEY=VALUE,VALUE,... such as device.max_num_seqs=8,16")
    if len(set(map(text, values))) < len(values):
        raise UsageError(f"--vary {argument}: a value stands there twice")
    return Variable(key.strip(), values)


def grid(base: Mapping[str, Any], variables: list[Variable]) -> Grid:
    """1 + sum(values - 1) cells: each value of each variable, all else as in `base`.

    A variable that `base` does not set starts from its first value, for a base that is not known is none.
    The base's own value is tried whether it is listed or not.

    Raises:
        UsageError: a variable twice, or its key is no place for a value.
    """
    if len({variable.key for variable in variables}) < len(variables):
        raise UsageError("--vary: a variable is there twice; give all its values at once")
    filled, notes = copy.deepcopy(dict(base)), list[str]()
    for variable in variables:
        if read(filled, variable.key) is None:
            filled = changed(filled, variable.key, variable.values[0])
            notes.append(f"the base does not set {variable.key}: it is given {text(variable.values[0])}")
    base_values = {variable.key: _base_value(filled, variable.key) for variable in variables}
    complete = [_with(variable, base_values[variable.key]) for variable in variables]
    cells = [Cell(filled, None, None)]
    for variable in complete:
        others = (value for value in variable.values if not same(value, base_values[variable.key]))
        cells += [Cell(changed(filled, variable.key, value), variable.key, value) for value in others]
    return Grid(cells, complete, base_values, notes)


def changed(config: Mapping[str, Any], key: str, value: Value) -> dict[str, Any]:
    """A copy of `config` with `key` set. Raises UsageError if a part of the key is no table."""
    copied = copy.deepcopy(dict(config))
    *path, last = key.split(".")
    table = copied
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UsageError(f"--vary {key}: {part} is no table in the base configuration")
    table[last] = value
    return copied


def read(config: Mapping[str, Any], key: str) -> Any:
    """The value at `key`, None if it is not set."""
    found: Any = config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def same(one: Value | None, other: Value | None) -> bool:
    """True for equal values of one type: 1, 1.0 and true are three settings."""
    return type(one) is type(other) and one == other


def text(value: Value | None) -> str:
    """As it stands in the file, without a string's quotes."""
    return value if isinstance(value, str) else value_text(value)


def _with(variable: Variable, base_value: Value) -> Variable:
    if any(same(value, base_value) for value in variable.values):
        return variable
    return Variable(variable.key, (base_value, *variable.values))


def _base_value(config: Mapping[str, Any], key: str) -> Value:
    value = read(config, key)
    if not isinstance(value, Value):
        raise UsageError(
            f"--vary {key}: is {type(value).__name__} in the base configuration, no single value"
        )
    return value


def _value(part: str) -> Value:
    try:
        value = tomllib.loads(f"value = {part}")["value"]
    except tomllib.TOMLDecodeError:
        return part
    return value if isinstance(value, Value) else part
