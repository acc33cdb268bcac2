"""What each policy promises, as numbers: waiting bounds of sjf and priority, the service bound of fair."""

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.policies.options import SJF_PROMPT_WEIGHT
from pipeline.core.scheduling import Scheduler
from pipeline.core.sequence import Sequence
from pipeline.messages import DeviceReady, TokenizedRequest
from tests.scheduler_world import MS, World, request, scheduler

ARRIVALS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3), st.integers(0, 60)),
    min_size=2,
    max_size=40,
)
"""Prompt tokens, output tokens, priority, arrival in ms."""


def device(max_num_seqs: int = 2) -> DeviceReady:
    """Blocks for everybody: nobody is preempted, and nobody blocked."""
    return DeviceReady(num_blocks=1000, block_size=4, max_num_seqs=max_num_seqs, max_num_batched_tokens=64)


def passed_by(world: World, requests: dict[int, TokenizedRequest], request_id: int) -> list[int]:
    """How much later those arrived, in ns, who came after this request and were admitted before it."""
    before = world.order[: world.order.index(request_id)]
    arrived_ns = requests[request_id].arrived_ns
    return [lead for other in before if (lead := requests[other].arrived_ns - arrived_ns) > 0]


def run(
    core: Scheduler, arrivals: list[tuple[int, int, int, int]]
) -> tuple[World, dict[int, TokenizedRequest]]:
    requests = {
        k: request(k, prompt, output, arrived_ms=at, priority=priority)
        for k, (prompt, output, priority, at) in enumerate(sorted(arrivals, key=lambda each: each[3]))
    }
    world = World(core)
    world.run(requests.values())
    assert len(world.admitted) == len(requests)
    return world, requests


@given(arrivals=ARRIVALS, ageing_ms=st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_priority_is_passed_only_by_who_comes_within_its_bound(
    arrivals: list[tuple[int, int, int, int]], ageing_ms: int
) -> None:
    core = scheduler(device(), policy="priority", priority_ageing_s=ageing_ms / 1e3, max_preemptions=0)
    world, requests = run(core, arrivals)
    for request_id, each in requests.items():
        bound_ns = (3 - each.terms.priority) * ageing_ms * MS
        assert all(lead < bound_ns for lead in passed_by(world, requests, request_id))


@given(arrivals=ARRIVALS, tokens_per_ms=st.sampled_from([0.5, 1.0, 4.0]))
@settings(max_examples=50, deadline=None)
def test_sjf_is_passed_only_by_who_comes_within_its_bound(
    arrivals: list[tuple[int, int, int, int]], tokens_per_ms: float
) -> None:
    core = scheduler(device(), policy="sjf", sjf_tokens_per_s=tokens_per_ms * 1e3)
    work: dict[int, float] = {}
    learn = core.policies.lengths.predict

    def predict(sequence: Sequence) -> None:
        learn(sequence)
        work[sequence.request_id] = sequence.predicted_tokens + SJF_PROMPT_WEIGHT * sequence.num_prompt_tokens

    core.policies.lengths.predict = predict  # type: ignore[method-assign]
    world, requests = run(core, arrivals)
    for request_id in requests:
        bound_ns = (work[request_id] - 1) / tokens_per_ms * MS
        assert all(lead < max(bound_ns, 1) for lead in passed_by(world, requests, request_id))


def test_a_long_request_among_endless_short_ones_starts_within_the_ageing_bound() -> None:
    """1 of 1,000 tokens, then short ones of 10 for ever, faster than they can be served.

    a = 100 tokens/s, so W = (1000 - 10) / a = 9.9 s: from then on no newcomer passes. A short one takes 11
    steps of 1 ms and one comes every 10 ms, so at 9.9 s the device is behind by a tenth: it starts by 11 s.
    """
    bound_ms, every_ms = 9_900, 10
    core = scheduler(device(max_num_seqs=1), policy="sjf", sjf_tokens_per_s=100.0, max_wait_ms=None)
    short = [request(k, 5, 10, arrived_ms=k * every_ms) for k in range(1, 1500)]
    world = World(core)
    world.run([*short, request(0, 5, 1000), request(9999, 5, 10)], until_ns=12_000 * MS)
    start_ns = dict(world.admitted)[0]
    latest_ms = max(
        request_id * every_ms for request_id in world.order[: world.order.index(0)] if request_id < 9999
    )
    assert 0.95 * bound_ms < latest_ms < bound_ms, (
        "shortest first, as long as the bound allows, and no longer"
    )
    assert start_ns < 1.12 * bound_ms * MS


SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))


@given(
    light=st.lists(SIZES, min_size=30, max_size=30),
    heavy=st.lists(SIZES, min_size=30, max_size=30),
    max_num_seqs=st.integers(1, 4),
    weight=st.sampled_from([1.0, 2.0]),
)
@settings(max_examples=30, deadline=None)
def test_fair_keeps_backlogged_tenants_within_twice_the_maximum(
    light: list[tuple[int, int]], heavy: list[tuple[int, int]], max_num_seqs: int, weight: float
) -> None:
    """The theorem of the paper for backlogged clients. One at a time, that is two maximal requests."""
    weights = {"light": weight, "heavy": 1.0}
    core = scheduler(device(max_num_seqs), policy="fair", fair_weights=weights, max_wait_ms=None)
    world, ids = World(core), count()
    requests: dict[int, TokenizedRequest] = {}
    num_prompt_tokens: dict[int, int] = {}
    for tenant, sizes in {"light": light, "heavy": heavy}.items():
        for prompt, output in sizes:
            each = request(next(ids), prompt, output, tenant=tenant)
            requests[each.request_id], num_prompt_tokens[each.request_id] = each, prompt
            world.add(each)
    got = {"light": 0.0, "heavy": 0.0}
    differences = [0.0]
    while {each.terms.tenant for each in core.policies.order.candidates(0)} == got.keys():
        world.step()
        plan = world.plans[-1]
        for request_id, samples in zip(plan.request_ids, plan.samples, strict=True):
            tenant = requests[request_id].terms.tenant
            got[tenant] += 2 * samples / weights[tenant]
        for each in plan.admitted:
            tenant = requests[each.request_id].terms.tenant
            got[tenant] += num_prompt_tokens[each.request_id] / weights[tenant]
        differences.append(got["light"] - got["heavy"])
    largest = max(prompt + 2 * output for prompt, output in light + heavy)
    assert max(differences) - min(differences) <= 2 * max_num_seqs * largest
