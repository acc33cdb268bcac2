"""However prompts are cut, shared, preempted and cancelled: each of their tokens is scored once, in order."""

from collections import defaultdict, deque

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.prefix import PrefixHash
from pipeline.core.prefix_cache import PrefixCache
from pipeline.core.roles import SEPARATIONS
from pipeline.core.scheduling import Scheduler
from pipeline.messages import (
    MAX_SCORES,
    NO_VALUE,
    DeviceReady,
    FinishReason,
    Logprobs,
    SamplingParams,
    StepHandle,
    StepPlan,
    TokenizedRequest,
)
from pipeline.runtime.testing import CheckingRunner
from tests.property.results import batch_of

BLOCK = 4


def told_of(plan: StepPlan) -> Logprobs | None:
    """What a device says: the value tells the token, and where it stands."""
    if not plan.scored:
        return None
    rows = [(plan.request_ids[each.row], each, plan.num_computed[each.row]) for each in plan.scored]
    return Logprobs(
        [request_id for request_id, each, _ in rows for _ in each.token_ids],
        [token_id for _, each, _ in rows for token_id in each.token_ids],
        [-1.0 * (start + 1 + at) for _, each, start in rows for at in range(len(each.token_ids))],
        [[7] * each.num_top for _, each, _ in rows for _ in each.token_ids],
        [[-0.5] * each.num_top for _, each, _ in rows for _ in each.token_ids],
    )


PROMPTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=150),
        st.sampled_from([None, 0, 2]),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(
    asked=PROMPTS,
    num_blocks=st.integers(40, 90),
    max_num_batched_tokens=st.integers(1, 200),
    separation=st.sampled_from(["mixed", "split"]),
    cancelled=st.sets(st.integers(0, 5)),
    data=st.data(),
)
def test_each_token_is_told_of_once(
    asked: list[tuple[list[int], int | None, int]],
    num_blocks: int,
    max_num_batched_tokens: int,
    separation: str,
    cancelled: set[int],
    data: st.DataObject,
) -> None:
    device = DeviceReady(num_blocks, BLOCK, 4, max_num_batched_tokens)
    options = SchedulingOptions(max_wait_ms=None, policy=data.draw(st.sampled_from(["fcfs", "sjf"])))
    prefixes = PrefixCache(PrefixHash(BLOCK, "m", b"s" * 32))
    roles = SEPARATIONS[separation]
    scheduler = Scheduler(device, (), make_policies(options, device), roles, prefixes)
    runner = CheckingRunner(device)
    runners = [runner, *(runner.fork() for _ in roles[1:])]
    for number, (prompt, num_top, max_tokens) in enumerate(asked):
        sampling = SamplingParams(max_tokens=max_tokens, prompt_logprobs=num_top)
        assert scheduler.add(TokenizedRequest(number, list(prompt), sampling, 0, 0, (0, 0, 0))) is None
    told: dict[int, list[tuple[int, float, int]]] = defaultdict(list)
    ended: dict[int, int] = {}
    flying: deque[StepHandle] = deque()
    now_ns = 0
    while not scheduler.is_idle:
        now_ns += 1
        if cancelled and data.draw(st.integers(0, 9)) == 0:
            scheduler.cancel(cancelled.pop(), FinishReason.CANCELLED)
        for worker in range(len(roles)):
            plan = scheduler.plan(now_ns, worker)
            if plan is not None:
                assert sum(len(each.token_ids) for each in plan.scored) <= MAX_SCORES
                flying.append(runners[worker].launch(plan))
        while len(flying) > data.draw(st.integers(0, 2)):
            handle = flying.popleft()
            batch = batch_of(handle, (now_ns,) * 4)
            scheduler.apply(replace(batch, scores=told_of(handle.plan)), now_ns)
        tokens = scheduler.take_tokens(now_ns)
        if tokens is None:
            continue
        if (scores := tokens.scores) is not None:
            columns = (scores.request_ids, scores.token_ids, scores.values, scores.top_ids)
            for request_id, token_id, value, top in zip(*columns, strict=True):
                assert request_id not in ended
                told[request_id].append((token_id, value, len(top)))
        rows = zip(tokens.request_ids, tokens.finish_reasons, strict=True)
        ended |= {request_id: finish for request_id, finish in rows if finish}
    for number, (prompt, num_top, _) in enumerate(asked):
        values = [NO_VALUE, *(-1.0 * at for at in range(1, len(prompt)))]
        tops = [0, *[num_top or 0] * (len(prompt) - 1)]
        whole = (
            list(zip(prompt, values, tops, strict=True)) if num_top is not None and len(prompt) > 1 else []
        )
        got = told[number]
        assert got == (whole if ended[number] == FinishReason.LENGTH else whole[: len(got)])
