"""A rate limit against a bucket that drains, and what a key may use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.allowance import UNKNOWN_TOKENS, Allowance
from pipeline.core.rate_limit import MINUTE_NS, RateLimit
from pipeline.errors import RequestError

SECOND_NS = 1_000_000_000


@given(
    per_min=st.integers(1, 1000),
    moves=st.lists(st.tuples(st.integers(0, 90 * SECOND_NS), st.integers(0, 1500)), max_size=40),
)
def test_it_is_a_bucket_that_drains(per_min: int, moves: list[tuple[int, int]]) -> None:
    """Whoever waits as long as he is told finds room; nobody gets more than a bucket would give."""
    limit, level, now_ns = RateLimit(per_min), 0.0, 0
    for later_ns, amount in moves:
        now_ns += later_ns
        level = max(0.0, level - later_ns * per_min / MINUTE_NS)
        cost = min(amount, per_min)
        wait_ns = limit.wait_ns(amount, now_ns)
        over = level + cost - per_min
        assert wait_ns == pytest.approx(max(0.0, over) * MINUTE_NS / per_min, abs=2_000)
        assert limit.num_left(now_ns) == pytest.approx(per_min - level, abs=1.001)
        if not wait_ns:
            limit.take(amount, now_ns)
            level += cost
        assert limit.wait_ns(amount, now_ns + wait_ns + 2_000) == 0 or not wait_ns


def test_what_was_not_used_comes_back() -> None:
    limit = RateLimit(100)
    limit.take(100, 0)
    assert limit.wait_ns(1, 0) == pytest.approx(0.6 * SECOND_NS, abs=10)
    limit.give_back(40)
    assert limit.num_left(0) == 40
    assert limit.wait_ns(40, 0) == 0 < limit.wait_ns(41, 0)


def refusal(allowance: Allowance, num: int, tokens: int | None, now_ns: int) -> RequestError:
    with pytest.raises(RequestError) as caught:
        allowance.admit(num, tokens, now_ns)
    assert caught.value.status == 429
    return caught.value


def test_all_or_none_are_admitted() -> None:
    allowance = Allowance(requests_per_min=3, max_concurrent=10)
    charge = allowance.admit(2, 5, 0)
    assert (charge.num_left, charge.tokens_each) == (2, 5)
    error = refusal(allowance, 2, 5, 0)
    assert (error.code, error.retry_after_s) == ("rate_limit_exceeded", 20)
    assert "3 requests a minute" in error.message
    allowance.admit(1, 5, 0)
    refusal(allowance, 1, 5, 19 * SECOND_NS)
    allowance.admit(1, 5, 21 * SECOND_NS)


def test_tokens_are_counted_by_what_is_asked_and_then_by_what_was_used() -> None:
    allowance = Allowance(tokens_per_min=1000)
    first = allowance.admit(1, 900, 0)
    assert "1000 tokens a minute" in refusal(allowance, 1, 200, 0).message
    allowance.settle(first, 150, 0)
    second = allowance.admit(1, 850, 0)
    refusal(allowance, 1, 1, 0)
    allowance.settle(second, 950, 0)  # a long prompt: it used more than was counted
    assert refusal(allowance, 1, 1, 0).retry_after_s == pytest.approx(6, abs=1)


def test_a_request_without_max_tokens_counts_as_something() -> None:
    allowance = Allowance(tokens_per_min=UNKNOWN_TOKENS)
    allowance.admit(1, None, 0)
    refusal(allowance, 1, 1, 0)


def test_live_requests() -> None:
    allowance = Allowance(max_concurrent=2)
    charge = allowance.admit(2, 5, 0)
    error = refusal(allowance, 1, 5, 0)
    assert (error.code, error.message) == (
        "too_many_requests_of_key",
        "This key may have 2 live requests, and has 2.",
    )
    allowance.settle(charge, 5, 0)
    allowance.admit(1, 5, 0)
    refusal(allowance, 1, 5, 0)
