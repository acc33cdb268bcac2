"""A replica keeps what it is given, is repeatable, and no faster than its device."""

import pytest

from pipeline.messages import Terms
from pipeline.simulate.door import GatedDoor
from pipeline.simulate.figures import ended
from pipeline.simulate.host import HostCosts
from pipeline.simulate.workload import Arrival
from tests.unit.simulate.worlds import FREE, LinearCost, capacity, poisson, replica, simulate

LENGTHS = [(5, 1), (20, 7), (90, 30), (3, 60), (17, 2)]


def test_every_request_gets_all_its_tokens() -> None:
    workload = poisson(1, 400, 3e6, LENGTHS)
    here = replica()
    assert simulate(workload, [here]) == {}
    answers = {answer.index: answer for answer in ended(here, FREE)}
    assert [answers[index].num_output for index in range(400)] == [each.num_output for each in workload]
    assert here.scheduler.pool.num_owned == 0 and here.ledger.num_live == 0


def test_a_preempted_request_gets_all_its_tokens_too() -> None:
    workload = [Arrival(0, 20, 60) for _ in range(8)]
    here = replica(capacity(num_blocks=24))
    simulate(workload, [here])
    assert here.scheduler.num_preemptions > 0
    assert [answer.num_output for answer in ended(here, FREE)] == [60] * 8
    assert any(len(track.runs) > 1 for track in here.ledger.tracks)


def test_the_answer_ends_before_what_the_client_asked_for() -> None:
    workload = [arrival._replace(max_tokens=100) for arrival in poisson(2, 60, 5e6, LENGTHS)]
    here = replica(capacity(num_blocks=256))
    simulate(workload, [here])
    assert [answer.num_output for answer in ended(here, FREE)] == [each.num_output for each in workload]


def test_alone_the_first_token_takes_the_prefill_and_the_host() -> None:
    host = HostCosts(door_ns=1000, launch_ns=200, gap_ns=10, result_ns=30, text_ns=4)
    cost = LinearCost(kv_ns=0.0)
    here = replica(host=host, cost=cost)
    simulate([Arrival(0, 40, 3)], [here], host)
    (answer,) = ended(here, host)
    prefill_ns = cost.base_ns + 40 * cost.token_ns
    assert answer.ttft_ns == 1000 + 200 + prefill_ns + 30 + 4
    assert answer.e2e_ns - answer.ttft_ns == 2 * (cost.base_ns + cost.token_ns + 10)  # queued: only the gap
    assert answer.wait_ns == 0


def test_no_first_token_is_sooner_than_its_prefill() -> None:
    cost = LinearCost()
    here = replica(cost=cost)
    simulate(poisson(3, 300, 1e6, LENGTHS), [here])
    for answer in ended(here, FREE):
        assert answer.ttft_ns >= answer.wait_ns + cost.token_ns * answer.num_input
        assert answer.e2e_ns >= answer.ttft_ns + (answer.num_output - 1) * cost.base_ns


def test_the_same_inputs_give_the_same_times() -> None:
    first, second = replica(), replica()
    for here in (first, second):
        simulate(poisson(4, 300, 2e6, LENGTHS), [here])
    assert first.ledger.step_ns == second.ledger.step_ns
    assert ended(first, FREE) == ended(second, FREE)


def test_what_can_never_fit_is_refused_and_the_others_go_on() -> None:
    workload = [Arrival(0, 10, 5), Arrival(1, 600, 5), Arrival(2, 10, 5)]
    here = replica()
    assert simulate(workload, [here]) == {"kv_capacity_exceeded": 1}
    assert [answer.index for answer in ended(here, FREE)] == [0, 2]
    assert here.ledger.num_live == 0


def test_who_waits_past_half_his_patience_is_dropped_at_that_time() -> None:
    impatient = Terms(patience_ms=20.0)
    workload = [Arrival(0, 8, 200), Arrival(10, 8, 5, impatient), Arrival(20, 8, 5)]
    here = replica(capacity(max_num_seqs=1))
    assert simulate(workload, [here]) == {"wait_too_long": 1}
    assert [answer.index for answer in ended(here, FREE)] == [0, 2]
    assert here.ledger.num_live == 0


def test_a_gather_window_makes_an_idle_device_wait() -> None:
    here = replica(options={"gather_ms": 5.0})
    simulate([Arrival(0, 8, 2), Arrival(1_000_000, 8, 2)], [here])
    assert [answer.wait_ns for answer in ended(here, FREE)] == [5_000_000, 4_000_000]


def test_the_router_takes_the_replica_with_the_fewest_live_requests() -> None:
    both = [replica(), replica()]
    simulate([Arrival(number, 10, 50) for number in range(6)], both)
    assert [len(each.ledger.tracks) for each in both] == [3, 3]


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_static_batches_run_until_all_have_ended(batching: str) -> None:
    workload = [Arrival(number, 10, 5 if number else 50) for number in range(4)] + [Arrival(9, 10, 5)]
    here = replica(options={"batching": batching, "gather_ms": 1.0})
    simulate(workload, [here])
    last, long = ended(here, FREE)[4], ended(here, FREE)[0]
    assert (last.wait_ns < 10_000_000) == (batching == "continuous") or last.ttft_ns < long.e2e_ns


def test_a_gated_door_sends_away_who_would_wait_too_long() -> None:
    """Three times what the device can bear: who is let in waits no longer than the promise."""
    ready, cost = capacity(max_num_seqs=4), LinearCost(kv_ns=0.0)
    lengths = [(10, 50)]  # 50 ms each, four at a time: 80 requests/s
    workload = poisson(6, 2000, 1e9 / 240, lengths)
    promise_ms = 500.0
    gated = replica(
        ready, {"max_wait_ms": promise_ms}, cost=cost, door=GatedDoor(ready, int(promise_ms * 1e6))
    )
    open_to_all = replica(ready, {"max_wait_ms": promise_ms}, cost=cost)
    refused = simulate(workload, [gated])
    dropped = simulate(workload, [open_to_all])
    assert set(dropped) == {"wait_too_long"}
    assert refused["queue_wait"] > 1000 and refused.get("wait_too_long", 0) < dropped["wait_too_long"] / 4
    assert max(answer.wait_ns for answer in ended(gated, FREE)) <= promise_ms * 1e6
    assert gated.ledger.num_live == 0 and len(ended(gated, FREE)) + sum(refused.values()) == 2000
