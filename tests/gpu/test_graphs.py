"""Which decode steps are captured, within what, and which of them is taken for a step."""

import itertools
from collections.abc import Callable

import pytest
import structlog
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.gpu.graphs import MAX_TABLE, WIDER, Budget, DecodeGraphs, GraphPlan, GraphShape, graph_shapes
from tests.gpu.recording_device import RecordedGraph, RecordingDevice

PLENTY = Budget(10**9, 10**12)
SIZES = st.tuples(st.integers(1, 300), st.integers(1, 9000))


def size(shape: GraphShape) -> int:
    return shape.num_rows * shape.num_columns


def graphs_of(shapes: list[GraphShape]) -> DecodeGraphs:
    device = RecordingDevice()
    return DecodeGraphs(
        {shape: RecordedGraph(device, lambda: torch.zeros(1), torch.zeros(1)) for shape in shapes}
    )


@given(most=SIZES, data=st.data())
def test_every_step_has_a_graph_that_is_not_much_larger(most: tuple[int, int], data: st.DataObject) -> None:
    shapes = graph_shapes(*most)
    assert len(set(shapes)) == len(shapes) and max(map(size, shapes)) == size(shapes[0]) <= MAX_TABLE
    assert shapes[1:] == sorted(shapes[1:]), "from few rows to many"
    num_rows, num_columns = data.draw(st.integers(1, most[0])), data.draw(st.integers(1, most[1]))
    shape = graphs_of(shapes).fit(num_rows, num_columns)
    if shape is None:
        assert 2 * num_rows * WIDER * num_columns > MAX_TABLE, "many rows, and one of them long"
        return
    assert shape.num_rows >= num_rows and shape.num_columns >= num_columns
    assert shape.num_rows <= 2 * num_rows
    assert not any(
        num_rows <= other.num_rows and num_columns <= other.num_columns and other < shape for other in shapes
    ), "the smallest that holds it"


@given(most=SIZES, kept=st.integers(1, 30), rows=st.integers(1, 400), columns=st.integers(1, 9999))
def test_where_the_budget_ended_no_step_pays_for_more_empty_rows_than_it_has(
    most: tuple[int, int], kept: int, rows: int, columns: int
) -> None:
    shapes = graph_shapes(*most)[:kept]
    shape = graphs_of(shapes).fit(rows, columns)
    holding = [s for s in shapes if rows <= s.num_rows <= 2 * rows and columns <= s.num_columns]
    assert shape is None or shape in holding
    if len(shapes) == len(graph_shapes(*most)):
        assert (shape is None) == (not holding)


def work_of(shape: GraphShape) -> Callable[[], Tensor]:
    return lambda: torch.full((shape.num_rows, 1), float(shape.num_columns))


def test_a_replay_gives_the_work_of_its_shape() -> None:
    device, plan = RecordingDevice(), GraphPlan(graph_shapes(4, 128), PLENTY, lambda: 0)
    with device.active():
        graphs = plan.capture(device, work_of)
    assert len(graphs) == len(plan.shapes) == 6
    assert graphs.replay(GraphShape(2, 128)).tolist() == [[128.0]] * 2
    assert graphs.replay(GraphShape(4, 32)).tolist() == [[32.0]] * 4


def test_capturing_ends_where_its_budget_does_and_says_so() -> None:
    shapes = graph_shapes(64, 512)

    def captured(budget: Budget, graph_bytes: tuple[int, int] = (100, 10)) -> int:
        device, ticks = RecordingDevice(graph_bytes=graph_bytes), itertools.count(0, 10**9)
        with device.active():
            return len(GraphPlan(shapes, budget, lambda: next(ticks)).capture(device, work_of))

    with structlog.testing.capture_logs() as logs:
        assert captured(PLENTY) == len(shapes)
        assert captured(Budget(135, 10**12)) == 5, "the largest with 100, then 10 each"
        assert captured(Budget(0, 10**12)) == captured(Budget(10**9, 0)) == 1
        assert captured(Budget(10**9, 4 * 10**9)) == 4, "a second each"
    ends = [log for log in logs if "took_ms" in log]
    assert [log["log_level"] for log in ends] == ["info", *["warning"] * 4]
    assert "cuda_graph_memory or cuda_graph_s is used up" in ends[1]["event"]
    assert any(log["event"] == "capturing decode steps" for log in logs), "it takes long: progress is told"


def test_a_rehearsal_tells_what_all_will_take() -> None:
    shapes = graph_shapes(64, 512)
    device = RecordingDevice(graph_bytes=(1000, 10))
    with device.active():
        assert GraphPlan(shapes, PLENTY, lambda: 0).rehearse(device, work_of) == 1000 + 10 * (len(shapes) - 1)
        assert device.counts["captures"] == 2
        only = GraphPlan(graph_shapes(1, 1), PLENTY, lambda: 0)
        assert only.rehearse(device, work_of) == 1000


def test_work_that_cannot_be_captured_is_named_with_the_way_out() -> None:
    def waits(shape: GraphShape) -> Callable[[], Tensor]:
        def work() -> Tensor:
            raise RuntimeError("operation not permitted when stream is capturing")

        return work

    device, plan = RecordingDevice(), GraphPlan(graph_shapes(2, 8), PLENTY, lambda: 0)
    expected = (
        r"2 rows and 8 blocks .*not permitted when stream is capturing.*: set device.cuda_graphs = false"
    )
    with device.active(), pytest.raises(ModelError, match=expected):
        plan.capture(device, waits)
