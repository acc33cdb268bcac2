"""The page's charts, as text; test_page.py lets a browser draw them."""

import re
from html.parser import HTMLParser

import msgspec
import pytest

from loadgen.html import course, latency, render, stages
from loadgen.html.axis import Axis, fitted, from_zero, round_step, short
from loadgen.html.plot import area, bars, line, steps, thinned
from loadgen.record import Record
from loadgen.result import Result
from loadgen.verify import Mismatch, Verification
from tests.unit.loadgen.test_result import made_result


def empty_result() -> Result:
    """A run that was stopped before its first request."""
    return msgspec.structs.replace(made_result(1), requests=[], queues=[])


class Balance(HTMLParser):
    """Counts opened and closed elements."""

    VOID = ("meta", "link", "br")

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


@pytest.mark.parametrize("result", [made_result(), made_result(1), empty_result()])
def test_a_page_is_whole_and_fetches_nothing(result: Result) -> None:
    page = render(result)
    balance = Balance()
    balance.feed(page)
    assert balance.stack == [] and balance.fetched == []
    assert not re.search(r"https?://(?!server)|@import|url\(|<script", page)
    assert "NaN" not in page and "None" not in page


def test_every_chart_has_a_title_units_and_what_it_shows() -> None:
    page = render(made_result())
    figures = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    plots = [figure for figure in figures if 'class="plot' in figure]
    assert len(plots) == 11 and all(re.search(r"<h3>.+</h3><p>.+</p>", figure) for figure in figures)
    for figure in plots:
        assert len(re.findall(r'<div class="unit[^"]*">[^<]+</div>', figure)) == 2, figure[:200]
        assert re.search(r'<div class="x"><span', figure) and "<path" in figure


def test_without_requests_each_chart_says_that_there_is_nothing() -> None:
    page = render(empty_result())
    assert page.count('class="empty"') == 12 and "<path" not in page.partition("<body>")[2]


def test_names_from_outside_are_text() -> None:
    result = made_result(1)
    found = Verification(1, 1, 0, [Mismatch(0, 0, "<b>", "<i>")], [])
    result = msgspec.structs.replace(
        result,
        config=result.config | {"served_model": "<script>alert(1)</script>"},
        trace=msgspec.structs.replace(result.trace, notes=["<img src=x>"], path="x/<u>.csv"),
        verification=found,
    )
    page = render(result)
    assert "&lt;script&gt;" in page and "<script" not in page and "<img" not in page and "<u>" not in page
    assert "NOT VERIFIED" in page


def test_places_on_axes() -> None:
    x = Axis(0.0, 10.0)
    assert [x.place(value) for value in (-1, 0, 5, 10, 11)] == [0, 0, 500, 1000, 1000]
    assert x.ticks() == [(0, "0"), (200, "2"), (400, "4"), (600, "6"), (800, "8"), (1000, "10")]
    log = Axis(1.0, 1000.0, is_log=True)
    assert [round(log.place(value)) for value in (0, 1, 10, 1000)] == [0, 0, 333, 1000]
    assert [label for _, label in log.ticks()] == ["1", "3", "10", "30", "100", "300", "1000"]
    assert Axis(9.5, -0.5).place(0) == 950  # upside down


@pytest.mark.parametrize(
    ("values", "is_log"), [([], False), ([0.0], False), ([1.0, 19.0], False), ([0.0, 1.0, 21.0], True)]
)
def test_an_axis_fits_its_values(values: list[float], is_log: bool) -> None:
    axis = fitted(values)
    assert axis.is_log is is_log and axis.high > max(values, default=0.0) and axis.ticks()
    assert from_zero(values).low == 0


@pytest.mark.parametrize(
    ("least", "step"), [(0.3, 0.5), (0.5, 0.5), (0.51, 1), (3, 5), (70, 100), (1100, 2000)]
)
def test_steps_are_round(least: float, step: float) -> None:
    assert round_step(least) == pytest.approx(step)


@pytest.mark.parametrize(
    ("value", "label"), [(0, "0"), (0.25, "0.25"), (1500, "1500"), (15_000, "15k"), (2_500_000, "2.5M")]
)
def test_labels_are_short(value: float, label: str) -> None:
    assert short(value) == label


def test_path_data() -> None:
    x = y = Axis(0.0, 10.0)
    points = [(0.0, 0.0), (5.0, 10.0)]
    assert line(points, x, y) == "M0.0 1000.0L500.0 0.0"
    assert steps(points, x, y) == "M0.0 1000.0H500.0V0.0"
    assert area(points, x, y) == "M0.0 1000.0H500.0V0.0L500.0 1000L0.0 1000Z"
    assert bars([(1.0, 2.0, 5.0), (3.0, 3.0, 0.0)], x, y) == "M100.0 500.0H200.0M300.0 1000.0H300.5"
    assert line([], x, y) == steps([], x, y) == area([], x, y) == bars([], x, y) == ""


def test_thinning_keeps_the_ends() -> None:
    points = [(float(i), 0.0) for i in range(5000)]
    assert thinned(points[:3]) == points[:3]
    few = thinned(points, 100)
    assert len(few) == 100 and (few[0], few[-1]) == (points[0], points[-1])


def request(index: int, due_s: float, chunks: list[float], closed_s: float) -> Record:
    record = Record(index, due_s, 10, 5, sent_s=due_s, chunk_s=chunks, chunk_tokens=[1] * len(chunks))
    record.closed_s = closed_s
    return record


def test_rates_and_levels_over_time() -> None:
    records = [request(0, 0.0, [2.0, 4.0], 4.0), request(1, 1.0, [3.0, 4.0], 5.0), request(2, 9.0, [], 10.0)]
    levels = dict(course.levels([(record.sent_s or 0.0, record.closed_s) for record in records], 10.0, 10))
    assert [levels[float(at)] for at in range(10)] == [1, 2, 2, 2, 2, 1, 0, 0, 0, 1]
    rates = course.rates([(0.1, 2), (0.2, 3), (2.0, 4), (4.9, 2)], 5.0, 3)
    assert rates == [(0.0, 2.5), (2.0, 2.0), (5.0, 2.0)]  # 5 in 2 s; 6 in 3 s


def test_phases_of_the_timeline() -> None:
    records = [request(i, 0.0, [1.0, 2.0], 3.0) for i in range(3)] + [request(3, 0.0, [], 2.0)]
    records[1].fail("http_500", "no")
    records[2].ended_by = "client"
    chart = course.timeline(records, 4.0)
    for name in ("waiting for the first token", "streaming", "failed", "ended by its client"):
        assert f"</i>{name}</li>" in chart
    assert chart.count("<path") == 5  # four phases and the mesh


def test_the_stages_are_stacked_to_the_whole() -> None:
    chart = stages.stages(made_result().requests)
    widths = [[float(w) for w in re.findall(r' width="([\d.]+)"', bar)] for bar in chart.split("<svg")[1:]]
    assert len(widths) == 3 and max(map(sum, widths)) == pytest.approx(1000, abs=1)
    assert "only this project" in stages.stages([])


def test_latency_charts_have_corrected_and_raw() -> None:
    chart = latency.ttft([record for record in made_result().requests if record.is_finished])
    assert "from due (corrected)" in chart and "from sent (raw)" in chart and chart.count("<path") == 3
