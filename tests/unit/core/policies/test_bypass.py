from pipeline.core.policies.bypass import WINDOW, Bypass
from tests.scheduler_world import sequence


def test_so_many_may_pass_and_then_nobody() -> None:
    bypass, head, others = Bypass(2, 1000), sequence(0), [sequence(1), sequence(2)]
    for now_ns in (10, 20):
        assert list(bypass.behind(head, iter(others), now_ns)) == others
        bypass.passed(head)
    assert list(bypass.behind(head, iter(others), 30)) == []
    assert bypass.num_passes == 2


def test_nobody_passes_once_it_has_been_blocked_for_so_long() -> None:
    bypass, head, others = Bypass(9, 1000), sequence(0), [sequence(1)]
    assert list(bypass.behind(head, iter(others), 10)) == others
    assert list(bypass.behind(head, iter(others), 1009)) == others
    assert list(bypass.behind(head, iter(others), 1010)) == []


def test_few_are_looked_at() -> None:
    bypass, head = Bypass(9, 1000), sequence(0)
    assert len(list(bypass.behind(head, iter([sequence(k) for k in range(1, 100)]), 10))) == WINDOW


def test_zero_turns_it_off() -> None:
    head, others = sequence(0), [sequence(1)]
    assert list(Bypass(0, 1000).behind(head, iter(others), 10)) == []
    assert list(Bypass(9, 0).behind(head, iter(others), 10)) == []
