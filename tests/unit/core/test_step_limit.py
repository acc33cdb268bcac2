"""How many tokens a step may hold, after steps that found no memory."""

from pipeline.core.step_limit import RECOVERY_STEPS, StepLimit


def good_steps(limit: StepLimit, count: int) -> None:
    for _ in range(count):
        limit.applied()


def test_it_halves_and_comes_back_in_as_many_doublings() -> None:
    limit = StepLimit(512)
    for expected in (256, 128, 64):
        limit.shrink()
        assert limit.num_tokens == expected
    good_steps(limit, RECOVERY_STEPS - 1)
    assert limit.num_tokens == 64
    for expected in (128, 256, 512, 512):
        good_steps(limit, 1 if expected == 128 else RECOVERY_STEPS)
        assert limit.num_tokens == expected


def test_it_is_never_nothing() -> None:
    limit = StepLimit(3)
    for _ in range(5):
        limit.shrink()
    assert limit.num_tokens == 1
    good_steps(limit, 2 * RECOVERY_STEPS)
    assert limit.num_tokens == 3


def test_a_device_that_takes_less_is_obeyed_and_what_was_learned_stays() -> None:
    limit = StepLimit(512)
    limit.renew(256)
    assert limit.num_tokens == 256
    limit.shrink()
    limit.renew(512)
    assert limit.num_tokens == 128
