from pipeline.core.policies import fair
from pipeline.core.policies.fair import FairOrder
from pipeline.core.sequence import Sequence
from tests.scheduler_world import sequence


def fair_order(*tenants: str, **weights: float) -> FairOrder:
    """One request of each, in this order, of 4 prompt tokens."""
    order = FairOrder(weights)
    for request_id, tenant in enumerate(tenants):
        order.push(sequence(request_id, arrived_ms=request_id, tenant=tenant))
    return order


def admit(order: FairOrder, num: int) -> list[str]:
    """Admit so many, each of which gets 10 output tokens."""
    tenants = []
    for _ in range(num):
        first = next(order.candidates(0))
        order.take(first)
        for _ in range(9):
            order.served([first])
        tenants.append(first.terms.tenant)
    return tenants


def test_the_tenant_with_the_least_service_is_next() -> None:
    order = fair_order("a", "a", "a", "a", "b", "c")
    assert admit(order, 6) == ["a", "b", "c", "a", "a", "a"]


def test_service_is_prompt_and_output_over_weight() -> None:
    order = fair_order("a", "b", b=2.0)
    admit(order, 2)
    assert order.service("a") == 4 + 2 * 10
    assert order.service("b") == (4 + 2 * 10) / 2


def test_a_weight_is_a_share() -> None:
    order = fair_order(*["light", "heavy"] * 30, light=2.0)
    admitted = admit(order, 30)
    assert admitted.count("light") == 20


def test_idle_time_earns_no_credit() -> None:
    order = fair_order(*["busy"] * 20)
    admit(order, 10)
    order.push(sequence(50, tenant="new"))
    order.push(sequence(51, tenant="new"))
    assert order.service("new") == order.service("busy")
    assert sorted(admit(order, 4)) == ["busy", "busy", "new", "new"]


def test_who_comes_to_an_empty_queue_starts_where_the_last_left_it() -> None:
    order = fair_order("a", "a")
    admit(order, 2)
    order.push(sequence(9, tenant="b"))
    assert order.service("b") == order.service("a") > 0


def test_what_is_recomputed_is_not_charged_again() -> None:
    order = fair_order("a", "b")
    first = next(order.candidates(0))
    order.take(first)
    charged = order.service("a")
    first.epoch = 1
    order.push(first)
    order.take(first)
    assert order.service("a") == charged


def test_the_victim_is_of_the_tenant_that_got_most() -> None:
    order = fair_order("a", "b", "b")
    running = list(order.candidates(0))
    for each in running:
        order.take(each)
    assert order.victim(running).request_id == 2


def test_discarding_the_last_of_a_tenant_ends_its_waiting() -> None:
    order = fair_order("a", "b")
    for each in list(order.candidates(0)):
        order.discard(each)
        order.discard(each)
    assert len(order) == 0 and list(order.candidates(0)) == []


def test_counters_of_idle_tenants_are_forgotten() -> None:
    order = fair_order("a")
    for k in range(3 * fair.MAX_IDLE):
        passing = sequence(k + 1, tenant=f"t{k}")
        order.push(passing)
        order.discard(passing)
    assert len(order._counters) <= 2 * fair.MAX_IDLE
    assert next(order.candidates(0)).terms.tenant == "a"


def holding(*tenants: str) -> list[Sequence]:
    """One on the device for each of these, the latest last."""
    return [sequence(100 + index, arrived_ms=index, tenant=tenant) for index, tenant in enumerate(tenants)]


def test_who_would_hold_fewer_slots_gets_the_latest_of_those_who_hold_more() -> None:
    order, running = FairOrder({}), holding("heavy", "heavy", "heavy", "heavy")
    victims = order.outranked(sequence(1, tenant="light"), running)
    assert [each.request_id for each in victims] == [103, 102, 101], "one slot stays with it"


def test_a_slot_taken_is_not_taken_back() -> None:
    order, running = FairOrder({}), holding("heavy", "heavy", "light")
    assert order.outranked(sequence(1, tenant="heavy"), running) == []
    assert order.outranked(sequence(2, tenant="light"), running) == []


def test_slots_are_held_at_weights() -> None:
    order, running = FairOrder({"heavy": 4.0}), holding("heavy", "heavy", "heavy", "heavy")
    assert order.outranked(sequence(1, tenant="light"), running) == []


def test_prompts_of_the_tenant_with_the_fewest_slots_go_on_first() -> None:
    order, running = FairOrder({}), holding("heavy", "heavy", "light")
    rank = order.prefill_rank(running)
    assert [each.terms.tenant for each in sorted(running, key=rank)] == ["light", "heavy", "heavy"]
