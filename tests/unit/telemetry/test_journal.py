from pipeline.telemetry import Journal, RequestRecord
from pipeline.telemetry.journal import NUM_PREEMPTED
from tests.unit.telemetry.records import MS, request, step


def test_records_are_kept_up_to_a_bound_and_found_by_when_they_ended() -> None:
    journal = Journal(num_requests=3, num_steps=2)
    for k in range(5):
        journal.request(request(request_id=k, arrived_ns=k * 1000 * MS))
        journal.step(step(k))
    assert [each.request_id for each in journal.requests()] == [2, 3, 4]
    assert [each.request_id for each in journal.requests(since_ns=3208 * MS)] == [3, 4]
    assert [each.step_id for each in journal.steps()] == [3, 4]
    assert journal.steps(since_ns=step(4).applied_ns + 1) == []


def test_a_listener_hears_of_each_request_once() -> None:
    heard: list[RequestRecord] = []
    journal = Journal()
    journal.request(request(request_id=1))
    journal.listen(heard.append)
    journal.request(request(request_id=2))
    assert [each.request_id for each in heard] == [2]


def test_preemptions_wait_for_their_request_to_end() -> None:
    journal = Journal()
    journal.preempted(7, 10)
    journal.preempted(8, 11)
    journal.preempted(7, 12)
    assert journal.take_preempted(7) == (10, 12)
    assert journal.take_preempted(7) == ()
    assert journal.take_preempted(8) == (11,)


def test_preemptions_that_nobody_takes_are_not_kept_for_ever() -> None:
    journal = Journal()
    for request_id in range(NUM_PREEMPTED + 1):
        journal.preempted(request_id, 1)
    assert journal.take_preempted(0) == ()
    assert journal.take_preempted(1) == journal.take_preempted(NUM_PREEMPTED) == (1,)
