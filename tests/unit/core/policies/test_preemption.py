from pipeline.core.policies.keyed import KeyedOrder, PriorityOrder
from pipeline.core.policies.preemption import Preemption
from pipeline.core.prefix_cache import NoSharing
from pipeline.core.residents import Residents
from pipeline.core.sequence import Sequence
from pipeline.messages import DeviceReady
from tests.scheduler_world import MS, sequence


def ranked(*sequences: Sequence) -> KeyedOrder:
    order = PriorityOrder(10 * MS)
    for each in sequences:
        order.push(each)
        order.take(each)
    return order


def test_the_last_in_order_gives_way_until_it_has_done_so_too_often() -> None:
    first, second, third = (sequence(k, arrived_ms=k) for k in range(3))
    preemption = Preemption(ranked(first, second, third), max_preemptions=2)
    third.epoch = 1
    assert preemption.victim([first, second, third]) is third
    third.epoch = 2
    assert preemption.victim([first, second, third]) is second


def test_where_all_have_done_so_too_often_the_latest_arrival_gives_way() -> None:
    urgent_late, humble_early = sequence(0, arrived_ms=5, priority=9), sequence(1, arrived_ms=0)
    preemption = Preemption(ranked(urgent_late, humble_early), max_preemptions=1)
    assert preemption.victim([urgent_late, humble_early]) is humble_early
    urgent_late.epoch = humble_early.epoch = 1
    assert preemption.victim([urgent_late, humble_early]) is urgent_late, "the oldest progresses"


def test_for_a_waiting_one_as_few_give_way_as_it_needs_or_nobody() -> None:
    residents = Residents(DeviceReady(8, 4, 4, 64), NoSharing())
    running = [sequence(k, prompt=8, arrived_ms=k) for k in range(4)]
    for each in running:
        residents.enter(each)
    preemption = Preemption(ranked(*running), max_preemptions=1)
    assert preemption.victims(sequence(9, prompt=8), residents) == [], "it outranks nobody"
    assert preemption.victims(sequence(9, prompt=8, priority=1), residents) == [running[3]]
    assert preemption.victims(sequence(9, prompt=12, priority=1), residents) == [running[3], running[2]]
    running[3].epoch = 1
    assert preemption.victims(sequence(9, prompt=8, priority=1), residents) == [running[2]]
    running[2].epoch = running[1].epoch = 1
    assert preemption.victims(sequence(9, prompt=12, priority=1), residents) == []
