"""Which cells a tuning has, and how they are known again."""

from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.tune.cells import Cell, Variable, changed, grid, parse_variable, read
from loadgen.tune.store import Repeat, Store

BASE: dict[str, Any] = {"device": {"max_num_seqs": 16, "dtype": "auto"}, "stages": {"stream": {"inbox": 8}}}


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("device.max_num_seqs=8,16", "device.max_num_seqs", (8, 16)),
        ("a.flush_ms=0.5, 20.0", "a.flush_ms", (0.5, 20.0)),
        ("device.dtype=bfloat16,float32", "device.dtype", ("bfloat16", "float32")),
        ("trace.enabled=true,false", "trace.enabled", (True, False)),
        ('a.path="x y",z', "a.path", ("x y", "z")),
        ("device.kv_memory=8GiB,auto", "device.kv_memory", ("8GiB", "auto")),
    ],
)
def test_values_are_read_as_toml(text: str, key: str, values: tuple[object, ...]) -> None:
    variable = parse_variable(text)
    assert variable == Variable(key, values)  # type: ignore[arg-type]
    assert [type(value) for value in variable.values] == [type(value) for value in values]


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a..b=1", "a=1,,2", "a=1,1"])
def test_what_is_no_variable(text: str) -> None:
    with pytest.raises(UsageError, match=r"--vary"):
        parse_variable(text)


def test_one_variable_at_a_time_is_a_promise() -> None:
    made = grid(BASE, [Variable("device.max_num_seqs", (8, 16, 32)), Variable("stages.stream.inbox", (4, 8))])
    assert len(made.cells) == 1 + 2 + 1
    base = made.cells[0].config
    for cell in made.cells[1:]:
        assert cell.variable is not None
        differing = [key for key in made.base_values if read(cell.config, key) != read(base, key)]
        assert differing == [cell.variable] and read(cell.config, cell.variable) == cell.value
        assert changed(cell.config, cell.variable, made.base_values[cell.variable]) == base
    assert BASE["device"]["max_num_seqs"] == 16  # the argument is left alone


def test_a_base_value_that_is_not_listed_is_tried_too() -> None:
    made = grid(BASE, [Variable("device.max_num_seqs", (8, 32))])
    assert made.variables[0].values == (16, 8, 32) and len(made.cells) == 3 and not made.notes


def test_a_variable_that_the_base_does_not_set_starts_from_the_first_value() -> None:
    made = grid(BASE, [Variable("device.block_size", (32, 16)), Variable("new.table.x", (1.5, 2.5))])
    assert read(made.cells[0].config, "device.block_size") == 32
    assert made.notes[0] == "the base does not set device.block_size: it is given 32"
    assert (
        made.cells[2].config["new"]["table"] == {"x": 2.5}
        and made.cells[2].config["device"]["block_size"] == 32
    )


def test_integers_floats_and_booleans_are_different_settings() -> None:
    made = grid({"a": {"x": 1}}, [Variable("a.x", (1.0, True, 1))])
    assert len(made.cells) == 3


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ([Variable("device.max_num_seqs.x", (1,))], "max_num_seqs is no table"),
        ([Variable("device", (1,))], "dict in the base configuration"),
        ([Variable("a", (1,)), Variable("a", (2,))], "a variable is there twice"),
    ],
)
def test_what_cannot_be_varied(variables: list[Variable], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        grid(BASE, variables)


def cell(value: int) -> Cell:
    return Cell({"device": {"max_num_seqs": value}}, "device.max_num_seqs", value)


def repeat() -> Repeat:
    return Repeat(0, {"output tok/s": 10.0}, [], 1.0, 2.0)


def test_a_finished_cell_is_found_again_and_only_by_the_same_question(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "out", {"workload": "w", "server_version": "1"})
    assert store.finished(cell(8)) is None
    kept = store.keep(cell(8), [repeat()], None, 3.0)
    assert store.finished(cell(8)) == kept and store.finished(cell(9)) is None
    as_base = store.finished(Cell(cell(8).config, None, None))
    assert as_base is not None and as_base.variable is None  # the same configuration by another name
    assert Store(store.folder, {"workload": "w", "server_version": "2"}).finished(cell(8)) is None


def test_a_failed_or_broken_cell_is_tried_again(tmp_path: Path) -> None:
    store = Store(tmp_path, {})
    store.keep(cell(8), [], "it did not start", 1.0)
    assert store.finished(cell(8)) is None
    store.path(cell(8), ".json").write_text("{")
    assert store.finished(cell(8)) is None
    store.keep(cell(8), [repeat()], None, 1.0)
    assert store.finished(cell(8)) is not None


def test_client_bound_runs_are_left_out_where_two_others_are_left(tmp_path: Path) -> None:
    good, bound = repeat(), Repeat(1, {"output tok/s": 1.0}, ["late"], 1.0, 2.0)
    store = Store(tmp_path, {})
    assert store.keep(cell(8), [bound, good, good], None, 1.0).evidence == [good, good]
    assert store.keep(cell(8), [bound, good, bound], None, 1.0).evidence == [bound, good, bound]
