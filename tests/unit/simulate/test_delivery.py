"""The writes of an answer are those of the streamer's rule."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.coalesce import FlushRule
from pipeline.simulate.delivery import writes_ns

RULE = FlushRule(max_tokens=4, max_wait_ns=20)


def test_the_first_token_goes_at_once_and_a_slow_stream_never_waits() -> None:
    assert writes_ns([5, 30, 60, 90], RULE) == [5, 30, 60, 90]


def test_tokens_within_the_wait_share_a_write_at_its_end() -> None:
    assert writes_ns([0, 5, 10, 19, 40, 45, 90], RULE) == [0, 20, 40, 60, 90]


def test_so_many_pending_tokens_do_not_wait() -> None:
    assert writes_ns([0, 1, 2, 3, 4, 5], RULE) == [0, 4, 5]


def test_the_last_token_waits_for_nothing() -> None:
    assert writes_ns([0, 3], RULE) == [0, 3]


def _by_the_token(times: list[int], rule: FlushRule) -> list[int]:
    """What stages.stream does, token by token and with its timer."""
    writes: list[int] = []
    last, pending = -(1 << 60), 0
    for place, now in enumerate(times):
        if pending and rule.due_ns(last) < now:  # the timer comes first
            last, pending = rule.due_ns(last), 0
            writes.append(last)
        pending += 1
        if place == len(times) - 1 or rule.is_due(pending, last, now):
            last, pending = now, 0
            writes.append(now)
    return writes


@given(
    st.lists(st.integers(1, 15), min_size=1, max_size=60).map(
        lambda gaps: [sum(gaps[: end + 1]) for end in range(len(gaps))]
    ),
    st.integers(1, 6),
    st.integers(0, 40),
)
def test_as_the_streamer_does_it_token_by_token(times: list[int], max_tokens: int, max_wait_ns: int) -> None:
    rule = FlushRule(max_tokens, max_wait_ns)
    assert writes_ns(times, rule) == _by_the_token(times, rule)
