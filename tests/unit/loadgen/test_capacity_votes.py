"""When a run is lost, and what several runs at one rate say together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.capacity.votes import Verdict, Vote, lost, rank, values_ms
from loadgen.record import Record
from loadgen.slo import parse_slo

SLO = parse_slo("ttft=500ms,itl=50ms,p=90")


def answered(index: int, ttft_s: float, gap_s: float = 0.01) -> Record:
    record = Record(index, float(index), 10, 2, sent_s=float(index))
    record.chunk(index + ttft_s, 1)
    record.chunk(index + ttft_s + gap_s, 1)
    record.closed_s = index + ttft_s + gap_s
    return record


def refused(index: int) -> Record:
    record = Record(index, float(index), 10, 2, sent_s=float(index), closed_s=float(index))
    record.fail("http_503", "full")
    return record


def waiting(index: int) -> Record:
    return Record(index, float(index), 10, 2, sent_s=float(index))


def test_a_run_is_lost_once_more_are_over_than_the_percentile_allows() -> None:
    """p90 of 20: two may be over."""
    good = [answered(i, 0.1) for i in range(5)]
    assert lost(SLO, 90, [*good, answered(5, 0.6), answered(6, 0.6)], 20, 10.0) is None
    assert lost(SLO, 90, [*good, *(answered(i, 0.6) for i in (5, 6, 7))], 20, 10.0) == (
        "3 of 20 requests are over TTFT 500 ms, 2 may"
    )


def test_those_that_have_waited_too_long_already_count() -> None:
    records = [waiting(1), waiting(2), waiting(3), waiting(4)]
    assert lost(SLO, 90, records, 20, 3.4) is None  # two of them are over now
    assert lost(SLO, 90, records, 20, 3.6) is not None


def test_a_stream_that_has_begun_in_time_is_not_over_however_long_it_lasts() -> None:
    record = Record(0, 0.0, 10, 2, sent_s=0.0)
    record.chunk(0.1, 1)
    assert lost(SLO, 90, [record], 1, 100.0) is None
    assert lost(parse_slo("e2e=1s,p=90"), 90, [record], 1, 100.0) is not None


def test_failures_count_whatever_is_limited() -> None:
    slo = parse_slo("itl=50ms,ttft=10s,p=90")
    assert lost(slo, 90, [refused(i) for i in range(3)], 20, 1.0) == "3 of 20 requests have failed, 2 may"
    assert lost(slo, 90, [refused(i) for i in range(2)], 20, 1.0) is None


@given(
    st.lists(st.sampled_from([0.1, 0.4, 0.6, 2.0]), min_size=1, max_size=40), st.floats(50, 100), st.data()
)
def test_a_lost_run_never_holds(ttfts: list[float], percentile: float, data: st.DataObject) -> None:
    """What is cut would have failed: after any beginning of the run, and at its end they agree."""
    slo = parse_slo(f"ttft=500ms,p={percentile}")
    records = [answered(i, ttft) for i, ttft in enumerate(ttfts)]
    num_seen = data.draw(st.integers(0, len(records)))
    broken = bool(slo.broken(records))
    if lost(slo, percentile, records[:num_seen], len(records), 1000.0) is not None:
        assert broken
    assert (lost(slo, percentile, records, len(records), 1000.0) is not None) == broken


def test_values_are_at_the_percentile_of_finished_requests() -> None:
    records = [answered(i, 0.1 * (i + 1), 0.02) for i in range(10)] + [refused(10)]
    assert values_ms(SLO, 90, records) == pytest.approx({"ttft": 900.0, "itl": 20.0})
    assert values_ms(SLO, 90, [refused(0)]) == {}


@pytest.mark.parametrize(
    ("percentile", "count", "wanted"), [(99, 100, 99), (99, 50, 50), (50, 3, 2), (100, 7, 7)]
)
def test_nearest_rank(percentile: float, count: int, wanted: int) -> None:
    assert rank(percentile, count) == wanted


def vote(*, holds: bool = True, counts: bool = True) -> Vote:
    return Vote(0, [] if holds else ["too slow"], [] if counts else ["late"], {}, 10, 5.0, 2.0)


HELD, BROKEN, VOID = vote(), vote(holds=False), vote(counts=False)


@pytest.mark.parametrize(
    ("votes", "holds", "decided"),
    [
        ([HELD, HELD], True, False),
        ([HELD, HELD, HELD], True, True),
        ([HELD, BROKEN], False, False),
        ([BROKEN, BROKEN], False, True),
        ([HELD, BROKEN, HELD], True, True),
        ([VOID], None, False),
        ([VOID, HELD, HELD, VOID, HELD], True, True),
        ([VOID] * 4, None, True),
    ],
)
def test_majority(votes: list[Vote], holds: bool | None, decided: bool) -> None:
    verdict = Verdict(1.0, votes)
    assert verdict.holds is holds and verdict.is_decided(3) is decided


def test_a_tie_is_against_the_rate() -> None:
    verdict = Verdict(1.0, [HELD, BROKEN])
    assert verdict.holds is False and verdict.is_decided(2)
