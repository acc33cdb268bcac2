"""StepCost learns a known cost from noisy steps, whatever the noise does."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.step_cost import UNLIMITED, StepCost

Model = tuple[float, float, float, float]
Step = tuple[int, int, int]

MODELS = st.tuples(
    st.floats(1e5, 2e7),  # base
    st.floats(1e4, 2e6),  # a prefill token
    st.floats(1e4, 2e6),  # a decode token
    st.floats(0, 2e3),  # a KV token
)


def cost_of(model: Model, step: Step) -> float:
    return model[0] + sum(c * n for c, n in zip(model[1:], step, strict=True))


def mixed_step(rng: random.Random) -> Step:
    decode = rng.randint(0, 64)
    prefill = rng.choice((0, 0, rng.randint(1, 512))) or (0 if decode else 1)
    return prefill, decode, decode * rng.randint(20, 400) + prefill


def feed(cost: StepCost, model: Model, steps: int, rng: random.Random, noise: float = 0.0) -> None:
    for _ in range(steps):
        step = mixed_step(rng)
        cost.observe(*step, int(cost_of(model, step) * (1 + rng.uniform(-noise, noise))))


def error(cost: StepCost, model: Model, rng: random.Random) -> float:
    """The 9th decile of the relative errors of predictions."""
    steps = [mixed_step(rng) for _ in range(50)]
    return sorted(abs(cost.predict_ns(*step) / cost_of(model, step) - 1) for step in steps)[44]


@given(model=MODELS, seed=st.integers(0, 1 << 32))
@settings(max_examples=25, deadline=None)
def test_a_known_cost_is_recovered_from_noisy_steps(model: Model, seed: int) -> None:
    rng = random.Random(seed)
    cost = StepCost()
    feed(cost, model, 400, rng, noise=0.2)
    assert error(cost, model, rng) < 0.15


@given(model=MODELS, seed=st.integers(0, 1 << 32))
@settings(max_examples=20, deadline=None)
def test_a_paused_process_does_not_count(model: Model, seed: int) -> None:
    rng = random.Random(seed)
    cost = StepCost()
    feed(cost, model, 200, rng, noise=0.1)
    for _ in range(5):
        cost.observe(*mixed_step(rng), 10**11)
        feed(cost, model, 20, rng, noise=0.1)
    assert error(cost, model, rng) < 0.2


@given(before=MODELS, factor=st.floats(0.2, 4), seed=st.integers(0, 1 << 32))
@settings(max_examples=20, deadline=None)
def test_a_lasting_change_is_followed(before: Model, factor: float, seed: int) -> None:
    rng = random.Random(seed)
    cost = StepCost(memory_steps=100)
    feed(cost, before, 200, rng, noise=0.1)
    base, prefill, decode, kv = before
    after = (base * factor, prefill * factor, decode * factor, kv * factor)
    feed(cost, after, 600, rng, noise=0.1)
    assert error(cost, after, rng) < 0.15


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 1 << 20), st.integers(0, 4096), st.integers(0, 1 << 24), st.integers(0, 1 << 50)
        ),
        max_size=60,
    )
)
@settings(deadline=None)
def test_no_coefficient_is_ever_negative_and_more_work_never_costs_less(
    steps: list[tuple[int, int, int, int]],
) -> None:
    cost = StepCost()
    for step in steps:
        cost.observe(*step)
        assert min(cost.coefficients) >= 0
        assert cost.predict_ns(10, 4, 1000) >= cost.predict_ns(5, 2, 500) >= 0


@given(model=MODELS, seed=st.integers(0, 1 << 32), budget_ms=st.floats(1, 500))
@settings(max_examples=20, deadline=None)
def test_the_prefill_within_a_budget_just_fits(model: Model, seed: int, budget_ms: float) -> None:
    cost = StepCost()
    feed(cost, model, 200, random.Random(seed))
    budget_ns = budget_ms * 1e6
    fits = cost.prefill_tokens_within(budget_ns, 16, 2000)
    if fits:
        assert cost.predict_ns(fits, 16, 2000) <= budget_ns * 1.0001
    assert cost.predict_ns(fits + 1, 16, 2000) > budget_ns * 0.9999


def test_before_enough_steps_nothing_is_bounded() -> None:
    cost = StepCost()
    assert cost.predict_ns(100, 0, 100) == 0.0
    for _ in range(7):
        cost.observe(100, 0, 100, 5_000_000)
        assert not cost.is_ready
        assert cost.prefill_tokens_within(1e6, 0, 0) == UNLIMITED
        assert cost.prefill_tokens_per_s == 0
    cost.observe(100, 0, 100, 5_000_000)
    assert cost.is_ready
    assert abs(cost.predict_ns(100, 0, 100) / 5e6 - 1) < 0.05


def test_what_prompts_cost_is_not_forgotten_while_there_are_none() -> None:
    cost = StepCost(memory_steps=50)
    rng = random.Random(7)
    model = (2e6, 5e4, 1e5, 20.0)
    feed(cost, model, 200, rng)
    for _ in range(2000):
        decode = rng.randint(1, 64)
        step = (0, decode, decode * 200)
        cost.observe(*step, int(cost_of(model, step)))
    assert abs(cost.coefficients.per_prefill_token / 5e4 - 1) < 0.1
    assert abs(cost.prefill_tokens_per_s / 2e4 - 1) < 0.1
