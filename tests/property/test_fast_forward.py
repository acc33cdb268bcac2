"""Skipping steps that are alike changes nothing: not a time, not a block, not a counter."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.messages import Terms
from pipeline.simulate.figures import ended
from pipeline.simulate.host import HostCosts
from pipeline.simulate.replica import Replica
from pipeline.simulate.workload import Arrival
from tests.unit.simulate.worlds import FREE, LinearCost, capacity, replica, simulate

HOSTS = (FREE, HostCosts(door_ns=7, launch_ns=900_000, gap_ns=11, result_ns=1_500_000, text_ns=3))

arrivals = st.lists(
    st.builds(
        Arrival,
        at_ns=st.integers(0, 60_000_000),
        num_input=st.integers(1, 70),
        num_output=st.integers(1, 60),
        terms=st.builds(Terms, tenant=st.sampled_from("ab"), priority=st.integers(0, 2)),
        max_tokens=st.sampled_from([None, 60, 90]),
        spans=st.just(()),
    ),
    min_size=1,
    max_size=25,
).map(lambda each: sorted(each, key=lambda arrival: arrival.at_ns))
options = st.fixed_dictionaries(
    {
        "allocation": st.sampled_from(["paged", "paged", "contiguous"]),
        "policy": st.sampled_from(["fcfs", "priority", "sjf", "fair", "deadline"]),
        "batching": st.sampled_from(["continuous", "static"]),
        "gather_ms": st.sampled_from([0.0, 3.0]),
        "itl_stretch": st.sampled_from([0.0, 4.0]),
        "itl_target_ms": st.sampled_from([None, 2.0]),
        "max_wait_ms": st.sampled_from([40.0, 1e9]),
    }
)


def state(here: Replica) -> dict[str, Any]:
    """All that can be told from outside, and the scheduler's own counters."""
    scheduler, ledger = here.scheduler, here.ledger
    return {
        "steps": list(ledger.step_ns),
        "runs": [track.runs for track in ledger.tracks],
        "answers": ended(here, FREE),
        "refused": here.refused,
        "busy": (here.num_steps, here.busy_ns),
        "kv": (ledger.max_kv_tokens, ledger.kv_token_ns),
        "running": (ledger.running_ns, ledger.crowded_ns, ledger.running_crowded_ns),
        "preemptions": scheduler.num_preemptions,
        "padding": scheduler.num_padding_tokens,
        "planned": scheduler.num_steps,
        "learned": scheduler.policies.cost and scheduler.policies.cost.coefficients,
        "free": scheduler.pool.num_free,
    }


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arrivals, options, st.sampled_from([20, 40, 100]), st.integers(1, 8), st.sampled_from(HOSTS))
def test_skipping_changes_nothing(
    workload: list[Arrival], chosen: dict[str, object], num_blocks: int, max_num_seqs: int, host: HostCosts
) -> None:
    ready = capacity(num_blocks=num_blocks, max_num_seqs=max_num_seqs)
    states = []
    for can_skip in (True, False):
        here = replica(ready, chosen, host, LinearCost(), can_skip=can_skip)
        simulate(workload, [here], host)
        states.append(state(here))
    assert states[0] == states[1]


def test_steps_are_skipped() -> None:
    """Else the property would say nothing."""
    here = replica()
    planned = 0
    plan = here.scheduler.plan

    def counting(now_ns: int) -> Any:
        nonlocal planned
        planned += 1
        return plan(now_ns)

    here.scheduler.plan = counting  # type: ignore[method-assign]
    simulate([Arrival(0, 10, 300)], [here])
    assert here.num_steps == 300 and planned < 20
