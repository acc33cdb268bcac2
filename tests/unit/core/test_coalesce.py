from pipeline.core.coalesce import NEVER_NS, FlushRule

RULE = FlushRule(max_tokens=16, max_wait_ns=20)


def test_the_first_token_goes_at_once() -> None:
    assert RULE.is_due(1, NEVER_NS, 0)


def test_a_full_batch_goes_at_once() -> None:
    assert not RULE.is_due(15, 100, 101)
    assert RULE.is_due(16, 100, 101)


def test_a_stream_slower_than_the_bound_never_waits() -> None:
    assert RULE.is_due(1, 100, 120)


def test_the_rest_is_due_one_bound_after_the_last_write() -> None:
    assert not RULE.is_due(1, 100, RULE.due_ns(100) - 1)
    assert RULE.is_due(1, 100, RULE.due_ns(100))


def test_a_bound_of_nothing_merges_nothing() -> None:
    assert FlushRule(16, 0).is_due(1, 100, 100)
