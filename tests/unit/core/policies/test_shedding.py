from pipeline.core.policies.shedding import Limit, Shedding, patience
from tests.scheduler_world import MS, sequence


def codes(shedding: Shedding, now_ms: float) -> dict[int, str | None]:
    return {each.request_id: rejected.code for each, rejected in shedding.expired(int(now_ms * MS))}


def test_half_of_its_patience_but_never_over_the_servers_promise() -> None:
    shedding = Shedding([patience(30 * MS)])
    shedding.push(sequence(0, arrived_ms=1))
    shedding.push(sequence(1, arrived_ms=1, patience_ms=40.0))
    shedding.push(sequence(2, arrived_ms=1, patience_ms=400.0))
    assert shedding.wake_ns == 21 * MS
    assert codes(shedding, 20.9) == {}
    assert codes(shedding, 21) == {1: "wait_too_long"}
    assert codes(shedding, 31) == {0: "wait_too_long", 2: "wait_too_long"}
    assert shedding.num_shed == 3 and shedding.wake_ns is None


def test_without_a_promise_only_who_names_a_patience_is_shed() -> None:
    shedding = Shedding([patience(None)])
    shedding.push(sequence(0))
    shedding.push(sequence(1, patience_ms=2.0))
    assert codes(shedding, 1e6) == {1: "wait_too_long"}


def test_who_has_a_row_or_waits_no_more_is_not_shed() -> None:
    shedding = Shedding([patience(30 * MS)])
    started, admitted = sequence(0), sequence(1)
    started.is_started = True
    for each in (started, admitted):
        shedding.push(each)
    shedding.discard(admitted)
    assert shedding.wake_ns is None and codes(shedding, 1e6) == {}


def test_the_answer_names_the_limit_that_came_first() -> None:
    late = Limit("deadline_missed", "it can no longer be in time", lambda each: each.arrived_ns + 5 * MS)
    shedding = Shedding([patience(30 * MS), late])
    shedding.push(sequence(0))
    ((_, rejected),) = shedding.expired(6 * MS)
    assert (rejected.status, rejected.code) == (503, "deadline_missed")
    assert "waited 6 ms" in rejected.message and "no longer be in time" in rejected.message
