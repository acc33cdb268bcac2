import random

from pipeline.core.policies.ranked_queue import MIN_COMPACTED, RankedQueue
from tests.scheduler_world import sequence


def ids(queue: RankedQueue) -> list[int]:
    return [each.request_id for each in queue]


def test_in_order_of_key_then_of_id() -> None:
    queue = RankedQueue()
    for request_id, key in ((3, 1), (1, 2), (2, 1), (0, 5)):
        queue.push(key, sequence(request_id))
    assert ids(queue) == [2, 3, 1, 0] == ids(queue), "looking takes nothing out"
    assert queue.first_key() == 1 and len(queue) == 4


def test_discarded_ones_are_gone_and_may_come_back_with_another_key() -> None:
    queue = RankedQueue()
    both = [sequence(0), sequence(1)]
    for each in both:
        queue.push(1, each)
    queue.discard(both[0])
    queue.discard(both[0])
    assert ids(queue) == [1] and both[0] not in queue
    queue.push(1, both[0])
    assert ids(queue) == [0, 1] and len(queue) == 2
    queue.discard(both[0])
    queue.push(9, both[0])
    assert ids(queue) == [1, 0] and queue.first_key() == 1


def test_a_sequence_may_be_discarded_while_it_is_looked_at() -> None:
    queue = RankedQueue()
    for request_id in range(200):
        queue.push(request_id % 7, sequence(request_id))
    for each in queue:
        queue.discard(each)
    assert not len(queue) and queue.first_key() is None


def test_pop_below_takes_the_smaller_keys_only() -> None:
    queue = RankedQueue()
    for request_id in range(5):
        queue.push(request_id, sequence(request_id))
    assert [each.request_id for each in queue.pop_below(3)] == [0, 1, 2]
    assert ids(queue) == [3, 4]


def test_memory_is_bounded_by_what_is_in_it() -> None:
    queue, rng = RankedQueue(), random.Random(1)
    live = [sequence(request_id) for request_id in range(20)]
    for each in live:
        queue.push(0, each)
    for _ in range(10_000):
        each = rng.choice(live)
        queue.discard(each)
        queue.push(rng.randrange(100), each)
    assert len(queue._heap) <= 2 * len(live) + MIN_COMPACTED + 1
    assert sorted(ids(queue)) == list(range(20))
