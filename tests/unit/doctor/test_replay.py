"""The doctor on loadgen's result.json: what a client's side can tell, and what it says it cannot."""

import pytest

from pipeline.cli.doctor_source import judge
from pipeline.doctor import Constraint, Diagnosis, State
from pipeline.doctor.replay import LATE, REMAINDER
from tests.unit.doctor.replays import late_generator, record, result


def judged(count: int = 50, **fields: float) -> Diagnosis:
    return judge(result([record(k, **fields) for k in range(count)]), "result.json")


def test_a_late_generator_is_named_first_and_with_its_share() -> None:
    diagnosis = late_generator()
    finding = diagnosis.findings[0]
    assert (finding.constraint, diagnosis.state) == (Constraint.GENERATOR, State.CONSTRAINED)
    assert finding.share == pytest.approx(0.98 / 1.18, abs=0.01)
    assert "p99 lateness" in finding.evidence


def test_a_generator_in_time_is_not_named() -> None:
    assert judged(late_s=0.001).findings == ()


def test_a_lag_that_hardly_matters_is_said_and_no_finding() -> None:
    diagnosis = judged(late_s=0.02)
    assert diagnosis.findings == ()
    assert any("p99 lateness 20.0 ms" in each for each in diagnosis.unknown)


def test_requests_that_were_shed() -> None:
    mixed = [record(k, shed=k % 5 == 0) for k in range(100)]
    finding = judge(result(mixed), "result.json").findings[0]
    assert (finding.constraint, finding.share) == (Constraint.ADMISSION, 0.2)


def test_the_parts_add_up_to_what_the_client_saw() -> None:
    p50, p99 = judged(late_s=0.003, queue_s=0.4).attributions
    for each in (p50, p99):
        assert sum(each.segments_ns.values()) == pytest.approx(each.e2e_ns)
        assert each.segments_ns[LATE] == pytest.approx(3e6)
        assert each.segments_ns["schedule.wait"] == pytest.approx(4e8)
        assert each.segments_ns[REMAINDER] == pytest.approx(2e6)
        assert each.ttft_ns == pytest.approx(0.445e9)


def test_without_a_fault_of_its_own_side_it_points_to_the_segment_and_the_server() -> None:
    diagnosis = judged(queue_s=0.5)
    assert diagnosis.state is State.UNKNOWN and diagnosis.unknown
    assert diagnosis.verdict.startswith("Most of p99 E2E is schedule.wait (71%)")


def test_a_result_without_an_answer_is_not_judged() -> None:
    diagnosis = judge(result([record(0, shed=True)]), "result.json")
    assert [f.constraint for f in diagnosis.findings] == [Constraint.ADMISSION]
    assert diagnosis.attributions == ()
    assert judge(result([]), "result.json").verdict.startswith("Not judged")
