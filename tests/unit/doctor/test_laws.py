"""The laws: they hold on numbers that fit, and say why where they do not."""

from msgspec.structs import replace

from pipeline.doctor import Law, State, diagnose
from pipeline.telemetry import Evidence
from tests.unit.doctor.made import BEGIN, SECOND, evidence, request, requests, samples, step, steps


def law(of: Evidence, name: str) -> Law:
    return next(each for each in diagnose(of).laws if each.name == name)


def test_all_hold_on_a_healthy_server() -> None:
    laws = diagnose(evidence(requests(49))).laws
    assert [each.name for each in laws] == ["Little", "utilisation", "conservation", "segments"]
    assert [each for each in laws if not each.holds] == []


def test_little_counts_live_requests_against_rate_and_e2e() -> None:
    found = law(evidence(requests(49, {"execute.service": (50, 200)})), "Little")
    assert found.claim == "1.0 (+-1.0) live on average = 5.00 requests/s x 0.20 s"
    assert found.residual < 0.01


def test_little_does_not_hold_where_live_requests_are_not_accounted_for() -> None:
    found = law(evidence(requests(49), of_samples=samples(lambda _: {"num_live": 40})), "Little")
    assert not found.holds and found.residual > 0.9 and "too few samples" in found.why


def test_little_of_a_load_that_rises() -> None:
    rising = samples(lambda second: {"num_live": 8 * second})
    found = law(evidence(requests(49), of_samples=rising), "Little")
    assert not found.holds and "rising" in found.why


def test_little_of_a_window_shorter_than_its_requests() -> None:
    late = tuple(request(k, {"execute.service": (50, 60_000)}) for k in range(20))
    found = law(evidence(late, of_samples=samples(lambda _: {"num_live": 30})), "Little")
    assert not found.holds and "only 0.2 mean lifetimes" in found.why


def test_little_is_not_checked_on_a_few_samples() -> None:
    few = evidence(of_samples=samples()[:5])
    assert [each.name for each in diagnose(few).laws if each.name == "Little"] == []
    assert any("Little" in each for each in diagnose(few).unknown)


def test_utilisation_notices_steps_without_a_record() -> None:
    found = law(evidence(of_steps=steps(200)), "utilisation")
    assert not found.holds and found.residual > 0.5


def test_utilisation_notices_steps_that_overlap() -> None:
    twice = tuple(step(k, ms=40.0) for k in range(500))
    assert not law(evidence(of_steps=twice), "utilisation").holds


def test_steps_of_two_workers_may_overlap() -> None:
    split = tuple(step(k, ms=36.0, worker=k % 2) for k in range(500))
    found = law(evidence(of_steps=split), "utilisation")
    assert found.holds and found.claim.startswith("device busy 18")


def test_conservation() -> None:
    assert law(evidence(requests(49)), "conservation").claim == "50 taken in = 49 ended +0 live"
    lost = law(evidence(requests(30)), "conservation")
    assert not lost.holds and lost.residual == 0.4 and "without a record" in lost.why


def test_conservation_counts_rejected_requests_and_those_still_live() -> None:
    rejected = requests(10, {}, finish="rejected", code="kv_capacity_exceeded", ttft_ns=None)
    rejected = tuple(replace(each, segments_ns=(), ttft_segments_ns=()) for each in rejected)
    growing = samples(lambda second: {"num_live": second})
    assert law(evidence((*requests(30), *rejected), of_samples=growing), "conservation").holds


def test_requests_that_ended_before_the_first_sample_are_of_another_window() -> None:
    early = request(0, arrived_ns=BEGIN - 10 * SECOND)
    assert law(evidence((early, *requests(50))), "conservation").claim.startswith("50 taken in = 50 ended")


def test_segments_that_do_not_add_up() -> None:
    wrong = (*requests(20), request(21, e2e_ns=5))
    found = law(evidence(wrong), "segments")
    assert not found.holds and found.residual > 1


def test_the_verdict_says_that_the_numbers_do_not_add_up() -> None:
    assert "do not add up" in diagnose(evidence(requests(30))).verdict
    assert "do not add up" not in diagnose(evidence(requests(50))).verdict


def test_too_short_a_window_is_not_judged() -> None:
    found = diagnose(evidence(of_samples=samples()[:1]))
    assert (found.state, found.findings) == (State.UNKNOWN, ()) and "Not judged" in found.verdict
