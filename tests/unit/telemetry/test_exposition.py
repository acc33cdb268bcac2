"""What we write is what prometheus_client reads."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pipeline.runtime.histogram import DURATIONS_NS, Histogram
from pipeline.telemetry.metrics.exposition import Family, page

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters='\n\\"'), max_size=20)


def read(*families: Family) -> dict[str, tuple[str, str, dict[tuple[str, ...], float]]]:
    """By family: type, help, and the value of each series by name and label values."""
    return {
        family.name: (
            family.type,
            family.documentation,
            {(each.name, *each.labels.values()): each.value for each in family.samples},
        )
        for family in text_string_to_metric_families(page(families).decode())
    }


def test_counters_and_gauges() -> None:
    counter = Family("a_total", "counter", "So many").add(3, kind="x").add(4.5, kind="y")
    gauge = Family("b", "gauge", "Now").add(-1)
    assert read(counter, gauge) == {
        "a": ("counter", "So many", {("a_total", "x"): 3, ("a_total", "y"): 4.5}),
        "b": ("gauge", "Now", {("b",): -1}),
    }


def test_buckets_are_cumulative_in_the_unit_that_the_scale_gives() -> None:
    histogram = Histogram((1_000_000, 2_000_000))
    for value in (500_000, 1_000_000, 1_500_000, 9_000_000):
        histogram.add(value)
    _, _, series = read(Family("t_seconds", "histogram", "").add_histogram(histogram))["t_seconds"]
    assert series == {
        ("t_seconds_bucket", "0.001"): 2,
        ("t_seconds_bucket", "0.002"): 3,
        ("t_seconds_bucket", "+Inf"): 4,
        ("t_seconds_count",): 4,
        ("t_seconds_sum",): 0.012,
    }


def test_bounds_are_written_as_people_write_them() -> None:
    text = Family("t", "histogram", "").add_histogram(Histogram(), stage="x").text()
    bounds = [line.split('le="')[1].split('"')[0] for line in text.splitlines() if "_bucket" in line]
    assert bounds[:5] == ["0.0001", "0.00025", "0.0005", "0.001", "0.0025"]
    assert [float(bound) * 1e9 for bound in bounds[:-1]] == [float(bound) for bound in DURATIONS_NS]


def test_labels_of_the_family_are_on_every_series() -> None:
    family = Family("g", "gauge", "", {"model": "m"}).add(1, kind="x").add(2)
    assert family.text().splitlines()[2:] == ['g{model="m",kind="x"} 1.0', 'g{model="m"} 2.0']


@given(TEXTS, TEXTS)
def test_any_text_comes_through_as_it_is(label: str, text: str) -> None:
    _, documentation, series = read(Family("g", "gauge", f"x{text}x").add(1, name=label))["g"]
    assert series == {("g", label): 1}
    assert documentation == f"x{text}x"
