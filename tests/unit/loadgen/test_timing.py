"""Each form's rate and shape, by seed; what is refused, and how."""

from itertools import pairwise
from statistics import fmean, pstdev, variance

import pytest

from loadgen.errors import UsageError
from loadgen.timing import (
    FORMS,
    Closed,
    OnOff,
    Ramp,
    Renewal,
    Scale,
    drawn_s,
    parse_ramp,
    parse_timing,
)

COUNT = 20_000


def gaps(times: list[float]) -> list[float]:
    return [later - sooner for sooner, later in pairwise(times)]


def shape(times: list[float]) -> tuple[float, float]:
    """(rate, CV of the gaps)."""
    found = gaps(times)
    return len(found) / times[-1], pstdev(found) / fmean(found)


@pytest.mark.parametrize(
    ("text", "timing"),
    [
        ("trace", Scale(1)),
        ("scale=2.5", Scale(2.5)),
        ("rate=4", Renewal(4, 0)),
        ("poisson=0.5", Renewal(0.5, 1)),
        ("gamma=3,2.5", Renewal(3, 2.5)),
        ("onoff=20,0,5,10", OnOff(20, 0, 5, 10)),
        ("closed", Closed()),
        ("closed=8", Closed(8)),
    ],
)
def test_every_form_is_read_and_written_alike(text: str, timing: object) -> None:
    assert parse_timing(text) == timing
    assert str(timing) == text


@pytest.mark.parametrize(
    "text",
    ["", "often", "scale", "scale=0", "scale=-1", "scale=x", "rate=", "rate=inf", "poisson=nan",
     "poisson=1,2", "gamma=3", "gamma=3,0", "onoff=0,1,5,5", "onoff=5,1,0,5", "onoff=5,1,5", "closed=0",
     "closed=1.5", "closed=inf", "trace=1", "closed="],
)  # fmt: skip
def test_what_is_no_form_is_refused_with_all_that_are(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_timing(text)
    assert f"--timing {text}:" in str(caught.value)
    assert all(form in str(caught.value) for form in FORMS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("timing", "cv"), [(Renewal(5, 0), 0.0), (Renewal(5, 1), 1.0), (Renewal(0.2, 0.5), 0.5)]
)
def test_drawn_gaps_have_the_rate_and_the_cv(timing: Renewal, cv: float, seed: int) -> None:
    rate, found_cv = shape(drawn_s(timing, COUNT, None, seed))
    assert rate == pytest.approx(timing.rate, rel=0.03)  # the mean of 20,000 gaps of CV 1 is right to 0.7 %
    assert found_cv == pytest.approx(cv, abs=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_bursty_gamma(seed: int) -> None:
    rate, cv = shape(drawn_s(Renewal(10, 3), 100_000, None, seed))
    assert rate == pytest.approx(10, rel=0.05)
    assert cv == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_off_has_the_mean_rate_and_bursts(seed: int) -> None:
    """20/s for 1 s, 2/s for 3 s: 6.5/s. In 1 s windows it varies far more than a Poisson process.

    About 770 cycles: their mean has a standard deviation of 2.4 %.
    """
    times = drawn_s(OnOff(20, 2, 1, 3), COUNT, None, seed)
    assert shape(times)[0] == pytest.approx((20 * 1 + 2 * 3) / 4, rel=0.1)
    counts = [0] * (int(times[-1]) + 1)
    for at in times:
        counts[int(at)] += 1
    assert variance(counts) / fmean(counts) > 3
    flat = drawn_s(OnOff(6.5, 6.5, 1, 3), COUNT, None, seed)
    assert shape(flat) == pytest.approx((6.5, 1), rel=0.04)


def test_on_off_without_arrivals_while_off() -> None:
    """Bursts of 10 at 100/s, 10 s apart: gaps are short within, long between."""
    found = sorted(gaps(drawn_s(OnOff(100, 0, 0.1, 10), 2000, None, 1)))
    assert found[len(found) // 2] < 0.02 and found[-1] > 10


@pytest.mark.parametrize("timing", [Renewal(5, 0), Renewal(5, 1), Renewal(5, 2), OnOff(9, 1, 1, 1)])
def test_times_are_in_order_begin_at_0_and_depend_on_the_seed_alone(timing: Renewal | OnOff) -> None:
    times = drawn_s(timing, 500, None, 7)
    assert times[0] == 0 and times == sorted(times)
    assert times == drawn_s(timing, 500, None, 7)
    assert (times == drawn_s(timing, 500, None, 8)) is (timing == Renewal(5, 0))
    assert drawn_s(timing, 1, None, 7) == [0]


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    """10/s times 0.5 to 1.5: as long as at 10/s, and the rate is 5/s at first, 15/s at the end."""
    times = drawn_s(Renewal(10, 0), 1001, Ramp(0.5, 1.5), 0)
    assert times[-1] == pytest.approx(100)
    first, last = gaps(times)[0], gaps(times)[-1]
    assert (1 / first, 1 / last) == pytest.approx((5, 15), rel=0.02)
    halfway = sum(at < 50 for at in times)
    assert halfway == pytest.approx(50 * (5 + 10) / 2, abs=1)


def test_a_ramp_down_and_one_from_nothing() -> None:
    down = gaps(drawn_s(Renewal(10, 0), 1001, Ramp(2, 1), 0))
    assert (1 / down[0], 1 / down[-1]) == pytest.approx((20, 10), rel=0.02)
    up = drawn_s(Renewal(10, 1), COUNT, Ramp(0, 2), 3)
    assert up[-1] == pytest.approx(COUNT / 10, rel=0.03)
    assert sum(at < up[-1] / 2 for at in up) == pytest.approx(COUNT / 4, rel=0.05)


@pytest.mark.parametrize("text", ["", "1", "1:0", "-1:2", "a:b", "1:inf", "1:2:3"])
def test_wrong_ramps_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ramp"):
        parse_ramp(text)
