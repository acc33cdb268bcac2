from pipeline.core.policies.batching import Continuous, Gather, Static
from tests.scheduler_world import sequence


def test_without_a_window_an_idle_device_starts_at_once() -> None:
    gather = Gather(0, 4)
    assert gather.is_over(0, 1, now_ns=100) and gather.end_ns is None


def test_the_window_begins_with_the_first_and_ends_on_time() -> None:
    gather = Gather(50, 4)
    assert gather.is_over(0, 0, now_ns=10), "nobody waits, so there is nothing to wait for"
    assert not gather.is_over(0, 1, now_ns=100)
    assert gather.end_ns == 150
    assert not gather.is_over(0, 3, now_ns=149)
    assert gather.is_over(0, 3, now_ns=150) and gather.end_ns is None


def test_a_full_batch_ends_the_window() -> None:
    gather = Gather(50, 4)
    assert not gather.is_over(0, 3, now_ns=100)
    assert gather.is_over(0, 4, now_ns=101)


def test_the_window_is_for_an_idle_device_and_ends_when_all_have_left() -> None:
    gather = Gather(50, 4)
    assert gather.is_over(2, 1, now_ns=100)
    assert not gather.is_over(0, 1, now_ns=100)
    assert gather.is_over(0, 0, now_ns=120) and gather.end_ns is None
    assert not gather.is_over(0, 1, now_ns=200), "the next one has a window of its own"


def test_continuous_is_open_while_others_run() -> None:
    batching = Continuous(Gather(50, 4))
    assert batching.opens(3, 1, now_ns=0) and not batching.opens(0, 1, now_ns=0)
    assert batching.wake_ns == 50 and batching.num_padding(3) == 0


def filled(pad_to: int, *prompts: int) -> Static:
    batching = Static(Gather(0, 4), pad_to)
    assert batching.opens(0, len(prompts), now_ns=0)
    for request_id, prompt in enumerate(prompts):
        batching.joined(sequence(request_id, prompt))
    batching.filled()
    return batching


def test_static_takes_nobody_in_until_all_have_ended() -> None:
    batching = filled(0, 3, 4)
    assert not batching.opens(2, 5, now_ns=1) and not batching.opens(1, 5, now_ns=2)
    assert batching.opens(0, 5, now_ns=3)


def test_static_stays_open_while_it_fills() -> None:
    batching = Static(Gather(0, 4))
    assert batching.opens(0, 9, now_ns=0)
    batching.joined(sequence(0))
    assert batching.opens(1, 8, now_ns=1), "the step had no budget left, but there is room"
    batching.filled()
    assert not batching.opens(1, 8, now_ns=2)


def test_static_counts_what_padding_wastes() -> None:
    batching = filled(0, 3, 10, 5)
    assert batching.num_padding(3) == 7 + 0 + 5, "prompts are padded to the longest"
    assert batching.num_padding(3) == 0
    assert batching.num_padding(1) == 2, "a row for each that has ended"


def test_static_pads_to_a_fixed_length() -> None:
    assert filled(16, 3, 10).num_padding(2) == 13 + 6
    assert filled(4, 3, 10).num_padding(2) == 7, "the longest, where that is more"
