"""What the small TOML writer writes, `tomllib` reads back."""

import datetime
import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.tune.toml_text import dumps

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(TEXT, st.booleans(), st.integers(), st.floats(allow_nan=False))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_written_and_read_again(table: dict[str, Any]) -> None:
    read = tomllib.loads(dumps(table))
    assert read == table and kinds(read) == kinds(table)


def kinds(value: Any) -> Any:
    """1, 1.0 and true are equal in Python and three things in a configuration."""
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    return [kinds(item) for item in value] if isinstance(value, list) else type(value)


def test_as_a_person_would_write_it() -> None:
    table = {
        "a": 1,
        "stages": {"stream": {"options": {"flush_ms": 20.0}, "inbox": 8}},
        "b c": {"x": [1, "é"]},
    }
    assert dumps(table) == (
        "a = 1\n\n[stages.stream]\ninbox = 8\n\n[stages.stream.options]\nflush_ms = 20.0\n\n"
        '["b c"]\nx = [1, "é"]\n'
    )


def test_not_a_number() -> None:
    assert math.isnan(tomllib.loads(dumps({"x": math.nan}))["x"])


@pytest.mark.parametrize("value", [None, datetime.date(2026, 1, 1), object()])
def test_what_has_no_form_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="has no form in TOML here"):
        dumps({"x": value})
