"""How much of the queue goes before a newcomer."""

from pipeline.core.standing import ByFairShare, Claim, by_arrival, by_length, by_priority, standing_of

QUEUED = {Claim("a", 0, 3): 4.0, Claim("a", 2, 7): 1.0, Claim("b", 1, 5): 2.0, Claim("c", 0, 9): 8.0}


def test_by_arrival_all_of_it() -> None:
    assert by_arrival(Claim("x", 9, 0), 1.0, QUEUED) == 15
    assert by_arrival(Claim("x", 9, 0), 1.0, {}) == 0


def test_by_priority_its_own_and_higher_ones() -> None:
    assert [by_priority(Claim("x", priority, 0), 1.0, QUEUED) for priority in (0, 1, 2, 3)] == [15, 3, 1, 0]


def test_by_length_the_no_longer_ones() -> None:
    assert [by_length(Claim("x", 0, length), 1.0, QUEUED) for length in (2, 3, 5, 9)] == [0, 4, 6, 15]


def test_by_fair_share_no_more_of_another_than_he_is_served_meanwhile() -> None:
    fair = ByFairShare({})
    assert fair(Claim("new", 0, 0), 1.0, QUEUED) == 3  # one of each
    assert fair(Claim("b", 0, 0), 1.0, QUEUED) == 2 + 3 + 3
    assert fair(Claim("c", 0, 0), 1.0, QUEUED) == 8 + 5 + 2


def test_by_fair_share_weights_count() -> None:
    assert ByFairShare({"new": 2.0})(Claim("new", 0, 0), 1.0, QUEUED) == 1.5
    assert ByFairShare({"c": 4.0})(Claim("new", 0, 0), 1.0, QUEUED) == 1 + 1 + 4


def test_orders_that_are_not_known_are_by_arrival() -> None:
    assert standing_of("fcfs", {}) is standing_of("my.module:Order", {}) is by_arrival
    assert standing_of("priority", {}) is by_priority and standing_of("sjf", {}) is by_length
