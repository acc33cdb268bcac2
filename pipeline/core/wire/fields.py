"""Fields: one JSON object of a client, read field by field; every fault names field, value and limit.

Each field is taken by exactly one read. What is left at the end must be a field whose given value changes
nothing (`n: 1`), or it is refused: a field is never ignored.
"""

import math
from collections.abc import Mapping

import msgspec

from pipeline.errors import RequestError

_MAX_SHOWN = 40
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

_decode = msgspec.json.Decoder().decode


def decode_object(data: bytes | str) -> dict[str, object]:
    """The JSON object in `data`. Raises RequestError (400) that says where the JSON is wrong.

    Strict JSON (RFC 8259): NaN, Infinity, numbers out of range and lone surrogates are refused.
    """
    try:
        value = _decode(data)
    except RecursionError:
        raise invalid("the JSON is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise invalid(_located(error, len(data))) from None
    if not isinstance(value, dict):
        what = "a string" if isinstance(value, str) else shown(value)
        raise invalid(f"a JSON object is expected, but this is {what}")
    return value


def _located(error: Exception, size: int) -> str:
    text = str(error).removeprefix("JSON is malformed: ").removesuffix(" - at `$[...]`")
    return text if "(byte" in text or "truncated" not in text else f"{text} (byte {size})"


def invalid(message: str) -> RequestError:
    """The body or frame as a whole cannot be read."""
    return RequestError(f"Invalid JSON: {message}.", code="invalid_json")


def wrong(name: str, expected: str, value: object, code: str | None = "invalid_value") -> RequestError:
    """Field `name` must be `expected`, but is `value`."""
    return RequestError(f"'{name}' must be {expected}, but is {shown(value)}.", param=name, code=code)


def wrong_content(name: str, expected: str, value: object) -> RequestError:
    """The same of what a model would read: a text is not repeated."""
    if not isinstance(value, str):
        return wrong(name, expected, value)
    return RequestError(f"'{name}' must be {expected}, but is a string.", param=name, code="invalid_value")


def shown(value: object) -> str:
    """A value in an error message: short, and without what is inside lists and objects."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None or isinstance(value, bool):
        return msgspec.json.encode(value).decode()
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


class Fields:
    """The fields of one object that were not read yet. null is the same as absent (as in OpenAI's API)."""

    def __init__(self, values: dict[str, object], path: str = "") -> None:
        self._values = values
        self._path = path

    def name(self, field: str) -> str:
        return self._path + field

    def take(self, field: str) -> object:
        """The raw value, None if absent; the field counts as read."""
        return self._values.pop(field, None)

    def number(
        self, field: str, default: float, low: float, high: float, *, above_low: bool = False
    ) -> float:
        """A finite number in [low, high], or in (low, high] if `above_low`."""
        value = self.maybe_number(field, low, high, above_low=above_low)
        return default if value is None else value

    def maybe_number(self, field: str, low: float, high: float, *, above_low: bool = False) -> float | None:
        """The same, None if absent."""
        value = self.take(field)
        if value is None:
            return None
        expected = (
            f"a number {'above' if above_low else 'from'} {low:g} {'and up ' if above_low else ''}to {high:g}"
        )
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise wrong(self.name(field), expected, value)
        if not low <= value <= high or (above_low and value == low):
            raise wrong(self.name(field), expected, value)
        return float(value)

    def integer(self, field: str, low: int, high: int) -> int | None:
        """An integer in [low, high], None if absent."""
        value = self.take(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise wrong(self.name(field), f"an integer from {low} to {high}", value)
        return value

    def flag(self, field: str) -> bool:
        """true or false; false if absent."""
        return self.maybe_flag(field) or False

    def maybe_flag(self, field: str) -> bool | None:
        """true or false; None if absent."""
        value = self.take(field)
        if value is not None and not isinstance(value, bool):
            raise wrong(self.name(field), "true or false", value)
        return value

    def text(self, field: str) -> str | None:
        value = self.take(field)
        if value is not None and not isinstance(value, str):
            raise wrong(self.name(field), "a string", value)
        return value

    def finish(self, neutral: Mapping[str, tuple[object, ...]]) -> None:
        """Refuse every field left, unless its value is one that changes nothing."""
        for field, value in self._values.items():
            name = self.name(field)
            if field not in neutral:
                raise RequestError(
                    f"Unsupported field '{name[:_MAX_SHOWN]}'.",
                    param=name[:_MAX_SHOWN],
                    code="unsupported_field",
                )
            if value is not None and not any(_same(value, allowed) for allowed in neutral[field]):
                only = " or ".join(
                    ["null", *(msgspec.json.encode(allowed).decode() for allowed in neutral[field])]
                )
                raise RequestError(
                    f"'{name}' is not supported: only {only} is accepted, but it is {shown(value)}.",
                    param=name,
                    code="unsupported_value",
                )


def _same(value: object, allowed: object) -> bool:
    """Equal as JSON values: Python's True == 1 does not count."""
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
