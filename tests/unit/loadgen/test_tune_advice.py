"""Which value is taken, what it costs and where larger ones stop paying."""

from io import StringIO

import pytest
from rich.console import Console

from loadgen.tune.advice import Advice, Point, advise, change, grew_most, points_of
from loadgen.tune.cells import Value
from loadgen.tune.report import print_variable
from loadgen.tune.store import CellResult, Repeat

RATE, TTFT = "output tok/s", "TTFT p99 ms"


def result(*measures: dict[str, float], failure: str | None = None, bound: bool = False) -> CellResult:
    why = ["p99 lateness 20.0 ms is over 10.0 ms"] if bound else []
    repeats = [Repeat(i, each, why, 10.0, 20.0) for i, each in enumerate(measures)]
    return CellResult(1, "digest", {}, None, None, repeats, failure, 1.0)


def points(base: Value, **by_value: list[tuple[float, float]]) -> list[Point]:
    """(tok/s, TTFT) of each repeat, by v4=, v8=, ..."""
    results = {
        int(name[1:]): result(*({RATE: rate, TTFT: ttft} for rate, ttft in runs))
        for name, runs in by_value.items()
    }
    return points_of(list(results), lambda value: results[int(value)], base)


def advice(made: list[Point]) -> Advice:
    found = advise("seqs", made, RATE, 0.03)
    assert found is not None
    return found


def test_a_larger_batch_that_pays_is_taken_with_its_costs_and_its_end_named() -> None:
    made = points(
        8,
        v4=[(60, 500), (61, 510)],
        v8=[(100, 500), (101, 505)],
        v16=[(150, 700), (151, 710)],
        v32=[(151, 690), (152, 705)],
    )
    found = advice(made)
    assert found.take == 16
    assert found.sentences[0] == "seqs = 16: +50% output tok/s, +40% TTFT p99, against 8"
    assert found.sentences[1].startswith(
        "seqs: past 16 a larger value stops paying: 32 gives +0.7% output tok/s"
    )


def test_noise_hides_a_gain() -> None:
    """A gain of 10 % whose repeats lie 20 % apart is no gain."""
    assert change(*points(8, v8=[(90, 1), (110, 1)], v16=[(100, 1), (120, 1)]), RATE, 0.03) == 0.0
    assert change(*points(8, v8=[(100, 1), (100, 1)], v16=[(110, 1), (110, 1)]), RATE, 0.03) == pytest.approx(
        0.1
    )
    found = advice(points(8, v8=[(90, 500), (110, 500)], v16=[(100, 500), (120, 500)]))
    assert found.take == 8 and found.sentences[0].startswith("seqs: keep 8: no other value")
    assert "past 8 a larger value stops paying" in found.sentences[1]


def test_a_small_steady_gain_is_under_the_threshold() -> None:
    made = points(8, v8=[(100, 500), (100, 500)], v16=[(102, 500), (102, 500)])
    assert advice(made).take == 8
    found = advise("seqs", made, RATE, 0.01)
    assert found is not None and found.take == 16 and "+2% output tok/s" in found.sentences[0]


def test_where_the_rate_is_equal_the_lower_ttft_decides() -> None:
    found = advice(points(32, v8=[(100, 300), (101, 305)], v32=[(100, 500), (101, 505)]))
    assert found.take == 8 and found.sentences[0] == "seqs = 8: -40% TTFT p99, against 32"


def test_a_base_that_is_worse_than_all_others_is_left_for_its_nearest_equal() -> None:
    found = advice(points(4, v4=[(50, 500)] * 2, v16=[(100, 500)] * 2, v32=[(101, 500)] * 2))
    assert found.take == 16


def test_the_largest_that_still_pays_says_try_more() -> None:
    found = advice(points(4, v4=[(50, 500)] * 2, v8=[(100, 500)] * 2))
    assert (
        found.take == 8
        and found.sentences[1] == "seqs: a larger value still pays at 8, the largest tried: try more"
    )


def test_from_nothing_to_something_is_a_gain() -> None:
    """A goodput of 0 % is no measure to divide by."""
    found = advice(points(4, v4=[(0, 500)] * 2, v8=[(0, 500)] * 2, v16=[(50, 500)] * 2))
    assert found.take == 16 and "a larger value still pays at 16" in found.sentences[1]
    found = advice(points(4, v4=[(0, 500)] * 2, v8=[(0, 500)] * 2))
    assert found.take == 4 and "8 gives +0.0% output tok/s (noise 0%)" in found.sentences[1]


def test_words_have_no_order_and_no_end() -> None:
    results = {"auto": result({RATE: 10, TTFT: 5}), "float32": result({RATE: 5, TTFT: 5})}
    made = points_of(list(results), lambda value: results[str(value)], "auto")
    assert [point.value for point in made] == ["auto", "float32"]
    assert len(advice(made).sentences) == 1


def test_the_segment_that_grew_most() -> None:
    one = Point(8, result({"segment schedule.wait": 10.0, "segment execute.service": 50.0}), True)
    two = Point(16, result({"segment schedule.wait": 40.0, "segment execute.service": 60.0}), False)
    assert grew_most(one, two) == ("schedule.wait", 30.0)
    assert grew_most(two, one) is None
    assert grew_most(Point(8, result({RATE: 1.0}), True), Point(16, result({RATE: 1.0}), False)) is None


def printed(made: list[Point], objective: str = RATE) -> str:
    out = StringIO()
    print_variable(Console(file=out, width=160), "device.seqs", made, objective, 0.03)
    return out.getvalue()


def test_the_table_marks_base_and_choice_and_every_value_has_its_noise() -> None:
    out = printed(points(8, v8=[(100, 500), (102, 505)], v16=[(150, 700), (151, 710)]))
    assert "| device.seqs " in out and "8 (base) |" in out and "16 (take) |" in out
    assert "101.0 ±1.0" in out and "705 ±5" in out
    assert "kept time" in out and "CLIENT-BOUND" not in out


def test_failed_and_client_bound_cells_are_said() -> None:
    results = {
        8: result({RATE: 10.0}),
        16: result({RATE: 20.0}, bound=True),
        32: result(failure="the server ended with code 1; the end of x.log:\nNo memory [8 GiB]"),
    }
    out = printed(points_of([8, 16, 32], lambda value: results[int(value)], 8))
    assert "device.seqs = 32 failed: the server ended with code 1" in out and "No memory [8 GiB]" in out
    assert "CLIENT-BOUND 1 of 1" in out and "1 of 2 runs are CLIENT-BOUND" in out


def test_without_a_base_there_is_no_advice() -> None:
    results = {8: result(failure="no"), 16: result({RATE: 20.0})}
    assert "no advice" in printed(points_of([8, 16], lambda value: results[int(value)], 8))


def test_a_server_that_kept_up_was_not_tested_for_throughput() -> None:
    repeats = [Repeat(0, {RATE: 10.0}, [], 10.0, 10.5)]
    idle = CellResult(1, "", {}, None, None, repeats, None, 1.0)
    out = printed([Point(8, idle, True), Point(16, result({RATE: 20.0}), False)])
    assert "kept up with the workload at 8, so that its tok/s there is what was offered" in out
    assert "kept up" not in printed([Point(8, idle, True), Point(16, idle, False)], "goodput %")


def test_work_of_others_is_said() -> None:
    results = {8: result({RATE: 10.0, "others' CPU %": 3.0}), 16: result({RATE: 20.0, "others' CPU %": 64.0})}
    out = printed(points_of([8, 16], lambda value: results[int(value)], 8))
    assert "other work took up to 64 % of a core meanwhile" in out
