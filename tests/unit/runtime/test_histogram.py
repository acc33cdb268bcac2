from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.histogram import DURATIONS_NS, Histogram, merged


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    histogram = Histogram((10, 20))
    for value in (0, 10, 11, 20, 21):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert (histogram.count, histogram.total) == (5, 62)


def test_durations_begin_at_100_us_and_rise() -> None:
    assert DURATIONS_NS[0] == 100_000
    assert list(DURATIONS_NS) == sorted(set(DURATIONS_NS))


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 16))))
def test_a_weight_is_so_many_values(values: list[tuple[int, int]]) -> None:
    weighted, single = Histogram(), Histogram()
    for value, weight in values:
        weighted.add(value, weight)
        for _ in range(weight):
            single.add(value)
    assert (weighted.counts, weighted.total) == (single.counts, single.total)
    both = merged([weighted, single])
    assert both.count == 2 * weighted.count and both.total == 2 * weighted.total
