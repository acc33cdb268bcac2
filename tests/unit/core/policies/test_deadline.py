from pipeline.core.policies.deadline import DeadlineOrder, Targets
from pipeline.core.step_cost import StepCost
from tests.scheduler_world import MS, sequence


def learned() -> StepCost:
    """A step takes 1 ms, and 0.1 ms for each prefill token."""
    cost = StepCost()
    for k in range(200):
        num_prefill = 10 * (k % 7)
        cost.observe(num_prefill, 1 + k % 5, 0, MS + num_prefill * MS // 10)
    return cost


def deadline_order(cost: StepCost | None = None) -> DeadlineOrder:
    return DeadlineOrder(Targets(100.0, 10.0), {"chat": Targets(20.0, 5.0)}, cost or StepCost())


def ids(order: DeadlineOrder, now_ms: float = 0) -> list[int]:
    return [each.request_id for each in order.candidates(int(now_ms * MS))]


def test_targets_are_the_requests_own_else_its_tenants_else_the_default() -> None:
    order = deadline_order()
    order.push(sequence(0))
    order.push(sequence(1, tenant="chat"))
    order.push(sequence(2, tenant="chat", ttft_target_ms=10.0))
    order.push(sequence(3, ttft_target_ms=15.0))
    assert ids(order) == [2, 3, 1, 0]


def test_a_long_prompt_must_start_earlier() -> None:
    order = deadline_order(learned())
    order.push(sequence(0, prompt=10))
    order.push(sequence(1, prompt=500))
    assert ids(order) == [1, 0]
    slack_ms = order.start_by_ns(sequence(2, prompt=500)) / MS
    assert abs(slack_ms - (100 - 1 - 50)) < 3


def test_a_long_answer_must_start_earlier_where_tokens_come_slower_than_their_target() -> None:
    order = deadline_order(learned())
    hurried = {"ttft_target_ms": 100.0, "tpot_target_ms": 0.5}
    order.push(sequence(0, max_tokens=10, **hurried))
    order.push(sequence(1, max_tokens=100, **hurried))
    assert ids(order) == [1, 0]


def test_who_can_no_longer_be_in_time_goes_last_by_arrival() -> None:
    order = deadline_order()
    order.push(sequence(0, ttft_target_ms=5.0, arrived_ms=1))
    order.push(sequence(1, ttft_target_ms=6.5))
    order.push(sequence(2, ttft_target_ms=90.0))
    assert ids(order, now_ms=4) == [0, 1, 2]
    assert ids(order, now_ms=7) == [2, 1, 0]
    assert len(order) == 3


def test_who_was_preempted_while_it_wrote_goes_first() -> None:
    order = deadline_order()
    order.push(sequence(0, ttft_target_ms=1.0))
    resumed = sequence(1)
    resumed.token_ids.append(7)
    order.push(resumed)
    assert ids(order) == [1, 0]
    assert ids(order, now_ms=1000) == [1, 0]
    order.take(resumed)
    assert ids(order, now_ms=1000) == [0]


def test_the_one_with_most_slack_is_the_first_victim() -> None:
    order = deadline_order()
    running = [sequence(0, ttft_target_ms=50.0), sequence(1, ttft_target_ms=500.0), sequence(2)]
    for each in running:
        order.push(each)
        order.take(each)
    assert order.victim(running) is running[1]
