"""The search for a capacity against systems that are only a function."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.capacity.bisect import MAX_HALVINGS, Search, chance_at_the_edge, most_rates

RATES = st.floats(0.01, 10_000)
PRECISIONS = st.floats(0.005, 0.5)


def searched(search: Search, holds: object) -> list[float]:
    """The rates that were asked for."""
    asked = []
    while (rate := search.next_rate()) is not None:
        asked.append(rate)
        search.tell(rate, holds(rate))  # type: ignore[operator]
        assert len(asked) < 200
    return asked


@given(RATES, st.floats(-9, 20), PRECISIONS)
def test_the_bracket_holds_the_edge_and_is_as_narrow_as_asked(
    start: float, octaves: float, precision: float
) -> None:
    edge = start * 2**octaves
    search = Search(start, precision)
    asked = searched(search, lambda rate: rate <= edge)
    assert search.held is not None and search.failed is not None
    assert search.held <= edge < search.failed
    assert search.failed <= search.held * (1 + precision) * (1 + 1e-9)
    assert len(set(asked)) == len(asked) <= most_rates(precision, math.ceil(abs(octaves)) + 1)


@given(RATES, st.floats(1, 1000), st.floats(0, 12), PRECISIONS)
def test_nothing_is_asked_above_the_ceiling(
    start: float, factor: float, octaves: float, precision: float
) -> None:
    ceiling, edge = start * factor, start * 2**octaves
    search = Search(start, precision, ceiling)
    asked = searched(search, lambda rate: rate <= edge)
    assert max(asked) <= ceiling
    if edge >= ceiling:
        assert search.held == ceiling and search.failed is None


@given(RATES)
def test_what_never_holds_is_given_up(start: float) -> None:
    search = Search(start, 0.05)
    asked = searched(search, lambda rate: False)
    assert search.held is None and len(asked) == MAX_HALVINGS + 1


@given(RATES, st.floats(-5, 8), st.floats(0.01, 0.2), st.floats(0, 0.3), st.randoms(use_true_random=False))
def test_noise_about_the_edge_moves_the_answer_no_further_than_the_noise(
    start: float, octaves: float, precision: float, width: float, rng: random.Random
) -> None:
    """Within `width` of the edge anything may be said; outside of it the truth is."""
    edge = start * 2**octaves

    def holds(rate: float) -> bool:
        return rng.random() < 0.5 if edge / (1 + width) < rate < edge * (1 + width) else rate <= edge

    search = Search(start, precision)
    searched(search, holds)
    assert search.held is not None and search.failed is not None
    assert search.held <= edge * (1 + width) and search.failed >= edge / (1 + width) * (1 - 1e-9)
    assert search.held < search.failed


@pytest.mark.parametrize(("precision", "steps"), [(0.05, 4), (0.01, 7), (0.5, 1), (1.0, 0)])
def test_most_rates(precision: float, steps: int) -> None:
    assert most_rates(precision, 3) == 4 + steps


def test_chance_at_the_edge() -> None:
    assert chance_at_the_edge(3, 3) == 1 / 8
    assert chance_at_the_edge(2, 3) == 1 / 2
    assert chance_at_the_edge(5, 5) == 1 / 32
