from pipeline.core.policies.keyed import KeyedOrder, PriorityOrder, work_shift
from tests.scheduler_world import MS, sequence


def ids(order: KeyedOrder) -> list[int]:
    return [each.request_id for each in order.candidates(0)]


def test_first_come_first_served_is_by_the_arrival_at_the_door() -> None:
    order = KeyedOrder()
    for request_id, arrived_ms in ((2, 5), (0, 1), (1, 3)):
        order.push(sequence(request_id, arrived_ms=arrived_ms))
    assert ids(order) == [0, 1, 2]


def test_a_level_of_priority_is_worth_so_much_waiting() -> None:
    order = PriorityOrder(ageing_ns=10 * MS)
    order.push(sequence(0, arrived_ms=0, priority=0))
    order.push(sequence(1, arrived_ms=9, priority=1))
    order.push(sequence(2, arrived_ms=11, priority=1))
    order.push(sequence(3, arrived_ms=25, priority=3))
    assert ids(order) == [3, 1, 0, 2]


def test_priority_alone_preempts_the_lowest_and_latest_first() -> None:
    order = PriorityOrder(ageing_ns=10 * MS)
    running = [sequence(k, arrived_ms=k, priority=p) for k, p in enumerate((0, 1, 0, 2))]
    for each in running:
        order.push(each)
        order.take(each)
    outranked = order.outranked(sequence(9, arrived_ms=50, priority=1), running)
    assert [each.request_id for each in outranked] == [2, 0]
    aged = sequence(10, arrived_ms=-1000, priority=0)
    assert order.outranked(aged, running) == [], "age moves ahead in the queue, it does not preempt"


def test_shortest_first_with_age_counted_in_tokens() -> None:
    order = KeyedOrder(work_shift(tokens_per_s=1000, prompt_weight=0))  # a millisecond makes up for a token
    order.push(sequence(0, max_tokens=100, arrived_ms=0))
    order.push(sequence(1, max_tokens=10, arrived_ms=89))
    order.push(sequence(2, max_tokens=10, arrived_ms=91))
    assert ids(order) == [1, 0, 2]


def test_prompts_are_work_too() -> None:
    order = KeyedOrder(work_shift(tokens_per_s=1000, prompt_weight=0.1))
    order.push(sequence(0, prompt=900, max_tokens=10))
    order.push(sequence(1, prompt=90, max_tokens=90))
    order.push(sequence(2, prompt=90, max_tokens=80))
    assert ids(order) == [2, 1, 0]


def test_the_last_in_order_is_the_first_victim() -> None:
    order = KeyedOrder(work_shift(tokens_per_s=1000, prompt_weight=0))
    running = [sequence(0, max_tokens=100), sequence(1, max_tokens=10, arrived_ms=50)]
    for each in running:
        order.push(each)
        order.take(each)
    assert order.victim(running) is running[0]
