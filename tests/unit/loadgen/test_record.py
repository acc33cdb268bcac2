"""Metrics of one request and of a run, against worked examples."""

import pytest

from loadgen.errors import UsageError
from loadgen.record import Record
from loadgen.slo import parse_slo
from loadgen.summary import spread, summarise


def finished(
    chunks: list[tuple[float, int]], *, intended_s: float = 0.0, output: int | None = None
) -> Record:
    record = Record(0, intended_s, planned_input=7, planned_output=5, sent_s=intended_s)
    for at_s, tokens in chunks:
        record.chunk(at_s, tokens)
    record.usage(7, sum(tokens for _, tokens in chunks) if output is None else output)
    record.closed_s = chunks[-1][0] + 1.0 if chunks else 1.0
    return record


def test_worked_example_of_a_chunk_with_three_tokens() -> None:
    record = finished([(0.100, 1), (0.140, 1), (0.180, 3)])
    assert record.ttft_s == pytest.approx(0.100)
    assert record.itl_s == pytest.approx([0.040, 0.040])
    assert record.tpot_s == pytest.approx(0.020)
    assert record.e2e_s == pytest.approx(0.180)  # closed_s, a second later, does not count


def test_latency_counts_from_the_intended_time() -> None:
    record = finished([(12.0, 1)], intended_s=10.0)
    record.sent_s = 11.5
    assert record.ttft_s == pytest.approx(2.0) and record.lateness_s == pytest.approx(1.5)


def test_one_chunk_has_ttft_and_e2e_but_no_tpot_and_no_gap() -> None:
    record = finished([(0.3, 1)])
    assert record.ttft_s == record.e2e_s == pytest.approx(0.3)
    assert record.tpot_s is None and record.itl_s == []


def test_one_chunk_of_many_tokens_has_a_tpot_of_zero() -> None:
    assert finished([(0.3, 8)]).tpot_s == 0.0


def test_without_usage_a_chunk_of_unknown_size_counts_as_one_token() -> None:
    record = finished([(0.1, 0), (0.2, 0), (0.4, 0)])
    record.output_tokens = None
    assert record.num_output == 3 and record.tpot_s == pytest.approx(0.15)


def test_the_first_failure_is_kept() -> None:
    record = finished([])
    record.fail("timeout", "first")
    record.fail("disconnected", "second")
    assert record.failure is not None and record.failure.reason == "timeout"


def test_percentiles_interpolate() -> None:
    values = spread([i / 1000 for i in range(101)] + [None])
    assert values is not None and values.count == 101
    assert (values.p50_ms, values.p90_ms, values.p99_ms) == pytest.approx((50, 90, 99))
    assert spread([None]) is None


def test_the_summary_counts_failures_and_rates_finished_requests_only() -> None:
    good, bad = finished([(0.5, 2), (1.0, 2)]), finished([(0.5, 1)])
    good.closed_s, bad.closed_s = 2.0, 4.0
    bad.fail("http_429", "full")
    summary = summarise([good, bad], 3, 0.1, [0.001], parse_slo("ttft=600,tpot=1s"))
    assert (summary.num_planned, summary.num_sent, summary.num_finished) == (3, 2, 1)
    assert summary.failure_examples == {"http_429": "full"}
    assert summary.failures == {"http_429": 1} and summary.wall_s == 4.0
    assert summary.output_tokens_per_s == 1.0 and summary.input_tokens_per_s == 7 / 4
    assert summary.output.planned == 5 and summary.output.actual == 4 and summary.output.num_off == 1
    assert summary.ttft is not None and summary.ttft.count == 1
    assert summary.goodput is not None and summary.goodput.num_met == 1
    assert (summary.goodput.attained_pct, summary.goodput.offered_pct) == (100.0, 50.0)
    assert summary.num_shed == 1 and summary.goodput.shed_pct == 50.0
    assert summary.goodput.requests_per_s == 0.25
    assert summary.client_bound == []


@pytest.mark.parametrize(
    ("late_s", "gap_s", "lag_s", "bound"),
    [
        (0.009, 0.1, 0.001, False),
        (0.011, 0.1, 0.001, True),
        (0.011, 2.0, 0.001, False),
        (0.021, 2.0, 0.001, True),
        (0.001, None, 0.006, True),
    ],
)
def test_a_late_generator_convicts_itself(
    late_s: float, gap_s: float | None, lag_s: float, bound: bool
) -> None:
    record = finished([(0.5, 1)])
    record.sent_s = late_s
    assert bool(summarise([record], 1, gap_s, [lag_s], None).client_bound) is bound


def test_a_run_without_any_request_has_a_summary() -> None:
    summary = summarise([], 5, 1.0, [], parse_slo("ttft=1"))
    assert summary.num_sent == 0 and summary.ttft is None and summary.output_tokens_per_s == 0.0


def test_goals_take_units_and_a_one_token_answer_meets_any_tpot() -> None:
    slo = parse_slo("ttft=0.2s, tpot=10ms,e2e=300")
    assert slo.limits_ms == {"ttft": 200.0, "tpot": 10.0, "e2e": 300.0}
    assert slo.is_met(finished([(0.199, 1)]))
    assert not slo.is_met(finished([(0.201, 1)]))
    assert not slo.is_met(finished([(0.1, 1), (0.15, 1)]))


def test_itl_is_the_longest_gap_of_a_request_and_any_gap_of_a_run() -> None:
    steady, stalled = finished([(0.1, 1), (0.2, 1), (0.3, 1)]), finished([(0.1, 1), (0.2, 1), (0.9, 1)])
    slo = parse_slo("itl=150ms,p=75")
    assert slo.percentile == 75 and slo.is_met(steady) and not slo.is_met(stalled)
    assert slo.broken([steady, stalled]) == []  # the third of four gaps is 100 ms
    assert parse_slo("itl=150ms,p=76").broken([steady, stalled]) == ["p76 ITL 700.0 ms is over 150 ms"]
    assert parse_slo("itl=150ms").broken([stalled]) == []


def test_a_failed_request_is_infinitely_late_and_a_left_one_is_not_counted() -> None:
    good, failed, left = finished([(0.1, 1)]), finished([]), finished([(0.1, 1)])
    failed.fail("http_503", "full")
    left.ended_by, left.abandoned = "client", True
    assert parse_slo("ttft=1s,p=50").broken([good, failed, left]) == []
    assert parse_slo("ttft=1s,p=51").broken([good, failed, left]) == [
        "p51 TTFT of a failed request is over 1000 ms"
    ]
    summary = summarise([good, failed, left], 3, None, [], parse_slo("ttft=1s"))
    assert (summary.num_finished, summary.num_abandoned, summary.num_cancelled, summary.num_shed) == (
        1,
        1,
        0,
        1,
    )
    assert summary.failures == {"http_503": 1} and summary.ttft is not None and summary.ttft.count == 1
    assert summary.goodput is not None
    assert summary.goodput.attained_pct == 100 and summary.goodput.offered_pct == pytest.approx(100 / 3)


def test_corrected_and_raw_latency_stand_side_by_side() -> None:
    late = finished([(2.0, 1), (2.5, 1)], intended_s=1.0)
    late.sent_s = 1.6
    summary = summarise([late], 1, None, [], None)
    spreads = (summary.ttft, summary.raw_ttft, summary.e2e, summary.raw_e2e)
    assert [spread.mean_ms for spread in spreads if spread] == pytest.approx([1000, 400, 1500, 900])


def test_an_answer_without_any_token_cannot_meet_a_ttft_goal() -> None:
    assert not parse_slo("ttft=100").is_met(finished([], output=0))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft",
        "ttft=",
        "ttft=-1",
        "ttft=nan",
        "ttft=inf",
        "speed=3",
        "ttft=1,x=2",
        "p=99",
        "ttft=1,p=101",
        "ttft=1,p=0",
        "ttft=1,p=9ms",
    ],
)
def test_wrong_goals_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError, match="--slo"):
        parse_slo(text)
