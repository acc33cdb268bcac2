"""The interval holds the true ratio as often as it says, whatever the noise; deterministic seeds."""

import random
from itertools import pairwise
from math import exp

import pytest

from pipeline.bench.compare.ratio import MIN_ROUNDS, NOT_TOLD_APART, Ratio, ratio_of


def test_the_median_and_what_is_left_of_the_outermost() -> None:
    """As in tables of the sign test: of 6 rounds all, of 20 all but five at each end."""
    assert ratio_of([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == Ratio(3.5, 1.0, 6.0)
    assert ratio_of([float(each) for each in range(1, 21)]) == Ratio(10.5, 6.0, 15.0)
    assert ratio_of([float(each) for each in range(1, 10)]) == Ratio(5.0, 2.0, 8.0)


def test_it_cannot_be_said_of_fewer() -> None:
    with pytest.raises(ValueError, match="needs 6"):
        ratio_of([1.0] * (MIN_ROUNDS - 1))


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.5, 0.6, 0.7, 0.8, 0.9, 0.99], "faster"),
        ([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], NOT_TOLD_APART),
        ([1.0, 1.1, 1.2, 1.3, 1.4, 9.0], NOT_TOLD_APART),
        ([1.01, 1.1, 1.2, 1.3, 1.4, 9.0], "slower"),
    ],
)
def test_only_a_whole_interval_is_a_verdict(ratios: list[float], verdict: str) -> None:
    assert ratio_of(ratios).verdict == verdict


def test_one_disturbed_round_changes_little() -> None:
    quiet = [2.0 + 0.01 * each for each in range(20)]
    disturbed = [*quiet[:-1], 500.0]
    assert ratio_of(disturbed) == ratio_of(quiet)


@pytest.mark.parametrize("num_rounds", [6, 9, 20, 41])
def test_the_interval_holds_the_truth_at_least_19_times_in_20(num_rounds: int) -> None:
    """Log-normal noise, a tenth of it far off to one side or the other."""
    noise, truth, num_held = random.Random(num_rounds), 1.3, 0
    for _ in range(2000):
        ratios = [
            truth * exp(noise.gauss(0, 0.05) + (noise.gauss(0, 3) if noise.random() < 0.1 else 0))
            for _ in range(num_rounds)
        ]
        found = ratio_of(ratios)
        num_held += found.low <= truth <= found.high
    assert num_held / 2000 > 0.94  # 0.95, less two standard errors of 2,000


def test_more_rounds_see_finer() -> None:
    noise = random.Random(1)
    widths = []
    for num_rounds in (6, 24, 96, 384):
        found = ratio_of([exp(noise.gauss(0, 0.1)) for _ in range(num_rounds)])
        widths.append(found.high - found.low)
    assert all(wide > narrow for wide, narrow in pairwise(widths))
