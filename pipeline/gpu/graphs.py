"""Decode steps captured at the start, by how many rows they have and how wide their block tables are.

A captured step is one launch, and its shape is fixed: it is taken for smaller steps too, whose missing rows
are empty ones (api.StepInputs.slot_mapping). Which steps may be: docs/decisions/0025.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.gpu.device import Capturer, Clock, Graph

MIN_COLUMNS = 32
WIDER = 4
"""Tables are cut at max_blocks, a quarter of it, ...: what a wide table costs a kernel is programs that end
at once."""
MAX_TABLE = 2**18
"""Rows times columns that are captured at most: a MiB to copy for each step, and the memory that decode
attention works in goes by it. Only a step of many rows, one of them very long, is larger."""
LOG_EVERY_NS = 5_000_000_000


class GraphShape(NamedTuple):
    """Of a captured step."""

    num_rows: int
    num_columns: int
    """Of its block tables."""

    @property
    def table_size(self) -> int:
        return self.num_rows * self.num_columns


class Budget(NamedTuple):
    """What capturing may take."""

    num_bytes: int
    num_ns: int


class DecodeGraphs:
    """Those there are. One may be replayed at a time."""

    def __init__(self, graphs: Mapping[GraphShape, Graph]) -> None:
        self._graphs = dict(graphs)
        self._num_rows = sorted({shape.num_rows for shape in graphs})

    def __len__(self) -> int:
        return len(self._graphs)

    def fit(self, num_rows: int, num_columns: int) -> GraphShape | None:
        """The smallest that holds such a step; none with more empty rows than rows."""
        place = bisect_left(self._num_rows, num_rows)
        if place == len(self._num_rows) or self._num_rows[place] > 2 * num_rows:
            return None
        rows = self._num_rows[place]
        wide = (s for s in self._graphs if s.num_rows == rows and s.num_columns >= num_columns)
        return min(wide, default=None)

    def replay(self, shape: GraphShape) -> Tensor:
        """[num_rows, V] logits, valid until the next replay."""
        graph = self._graphs[shape]
        graph.replay()
        return graph.output


NO_GRAPHS = DecodeGraphs({})

WorkOf = Callable[[GraphShape], Callable[[], Tensor]]
"""What a decode step of a shape queues; its inputs are where such a step's always are."""


def graph_shapes(max_rows: int, max_columns: int) -> list[GraphShape]:
    """In the order in which they are captured: the largest, in whose memory the others live, then from few
    rows to many. So where a budget ends, it is the large steps, which gain least, that go without.
    """
    shapes = [GraphShape(rows, columns) for rows in _rows(max_rows) for columns in _columns(max_columns)]
    shapes = [shape for shape in shapes if shape.table_size <= MAX_TABLE]
    largest = max(shapes, key=lambda shape: shape.table_size)
    return [largest, *(shape for shape in shapes if shape != largest)]


@dataclass(frozen=True)
class GraphPlan:
    """Which decode steps to capture, and at what expense."""

    shapes: list[GraphShape]
    budget: Budget
    clock: Clock

    def capture(self, capturer: Capturer, work_of: WorkOf) -> DecodeGraphs:
        """As many as the budget allows, at least one. Raises ModelError for work that cannot be captured."""
        begin_ns = logged_ns = now_ns = self.clock()
        free, num_bytes = capturer.free_bytes(), 0
        graphs: dict[GraphShape, Graph] = {}
        for shape, graph in _captured(capturer, self.shapes, work_of):
            graphs[shape] = graph
            now_ns, num_bytes = self.clock(), free - capturer.free_bytes()
            if num_bytes >= self.budget.num_bytes or now_ns - begin_ns >= self.budget.num_ns:
                break
            if now_ns - logged_ns > LOG_EVERY_NS:
                logged_ns = now_ns
                _log().info("capturing decode steps", graphs=len(graphs), of=len(self.shapes))
        _log_end(len(graphs), len(self.shapes), num_bytes, now_ns - begin_ns)
        return DecodeGraphs(graphs)

    def rehearse(self, capturer: Capturer, work_of: WorkOf) -> int:
        """Bytes that all of them will take: the first two are captured, and let go again."""
        free = [capturer.free_bytes()]
        kept = []
        for _, graph in _captured(capturer, self.shapes[:2], work_of):
            kept.append(graph)
            free.append(capturer.free_bytes())
        largest, another = max(0, free[0] - free[1]), max(0, free[-2] - free[-1])
        return largest + another * (len(self.shapes) - 1)


def _captured(
    capturer: Capturer, shapes: list[GraphShape], work_of: WorkOf
) -> Iterator[tuple[GraphShape, Graph]]:
    first: Graph | None = None
    for shape in shapes:
        try:
            graph = capturer.capture(work_of(shape), first)
        except RuntimeError as error:
            raise ModelError(
                f"a decode step of {shape.num_rows} rows and {shape.num_columns} blocks cannot be captured "
                f"({error}): set device.cuda_graphs = false"
            ) from error
        first = first or graph
        yield shape, graph


def _rows(most: int) -> list[int]:
    """1, 2, 4, 8, 16, then also half way: 24, 32, 48, 64, 96, ... `most`."""
    steps = [1, 2, 4, 8]
    size = 16
    while size < most:
        steps += [size, size + size // 2]
        size *= 2
    return [step for step in steps if step < most] + [most]


def _columns(most: int) -> list[int]:
    sizes = [most]
    while sizes[0] // WIDER >= MIN_COLUMNS:
        sizes.insert(0, -(-sizes[0] // WIDER))
    return sizes


def _log_end(num_captured: int, num_wanted: int, num_bytes: int, num_ns: int) -> None:
    facts = {"mib": round(num_bytes / 2**20), "took_ms": num_ns // 1_000_000}
    if num_captured == num_wanted:
        _log().info("decode steps are captured", graphs=num_captured, **facts)
        return
    _log().warning(
        "not all decode steps are captured: the rest of them runs kernel by kernel; "
        "cuda_graph_memory or cuda_graph_s is used up",
        graphs=num_captured,
        of=num_wanted,
        **facts,
    )


def _log() -> structlog.typing.FilteringBoundLogger:
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return log
