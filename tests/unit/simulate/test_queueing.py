"""Against queueing theory, with a device that runs one request at a time: a single server queue."""

import pytest

from pipeline.simulate.figures import ended
from tests.unit.simulate.worlds import FREE, LinearCost, capacity, poisson, replica, simulate

STEP_NS = 1_000_000
COST = LinearCost(base_ns=STEP_NS, token_ns=0, kv_ns=0.0)


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_the_mean_wait_is_pollaczek_khinchines(load: float) -> None:
    """M/D/1: Poisson arrivals, one step each; mean wait = load * step / (2 (1 - load))."""
    waits: list[int] = []
    for seed in range(4):
        here = replica(capacity(max_num_seqs=1), cost=COST)
        simulate(poisson(seed, 10_000, STEP_NS / load, [(4, 1)]), [here])
        waits += [answer.wait_ns for answer in ended(here, FREE)]
    assert sum(waits) / len(waits) == pytest.approx(load * STEP_NS / (2 * (1 - load)), rel=0.05)


def test_every_single_wait_is_lindleys() -> None:
    """G/G/1: a request waits until the one before has ended (Lindley 1952)."""
    workload = poisson(9, 2_000, 5e6, [(4, 1), (4, 2), (4, 9)])
    here = replica(capacity(max_num_seqs=1), cost=COST)
    simulate(workload, [here])
    free_ns, expected = 0, []
    for arrival in workload:
        begin_ns = max(free_ns, arrival.at_ns)
        expected.append(begin_ns - arrival.at_ns)
        free_ns = begin_ns + arrival.num_output * STEP_NS
    assert [answer.wait_ns for answer in ended(here, FREE)] == expected
    assert sum(expected) > 0
