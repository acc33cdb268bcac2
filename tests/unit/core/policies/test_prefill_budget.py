from pipeline.core.policies.prefill_budget import FixedBudget, ItlBudget
from pipeline.core.step_cost import UNLIMITED, StepCost
from tests.scheduler_world import MS


def learned() -> StepCost:
    """A step takes 2 ms, 0.1 ms for each prefill token and 0.05 ms for each decode token."""
    cost = StepCost()
    for k in range(300):
        num_prefill, num_decode = 20 * (k % 7), 1 + k % 11
        cost.observe(num_prefill, num_decode, 0, 2 * MS + num_prefill * MS // 10 + num_decode * MS // 20)
    return cost


def test_fixed_leaves_it_to_the_batched_tokens() -> None:
    assert FixedBudget().max_tokens(10, 1000) == UNLIMITED


def test_prefill_fills_the_step_up_to_the_target() -> None:
    budget = ItlBudget(learned(), 16, target_ns=10 * MS)
    assert abs(budget.max_tokens(10, 0) - 75) <= 3  # (10 - 2 - 10 * 0.05) / 0.1
    assert budget.max_tokens(40, 0) < budget.max_tokens(10, 0)


def test_prefill_stretches_what_the_decode_rows_alone_would_take() -> None:
    budget = ItlBudget(learned(), 16, stretch=4.0)
    assert abs(budget.max_tokens(10, 0) - 75) <= 3  # 3 (2 + 10 * 0.05) / 0.1
    assert abs(budget.max_tokens(40, 0) - 120) <= 5
    assert budget.max_tokens(0, 0) == UNLIMITED


def test_prompts_progress_even_where_decode_rows_alone_are_too_slow() -> None:
    assert ItlBudget(learned(), 16, target_ns=MS).max_tokens(10, 0) == 16


def test_nobody_waits_where_nobody_decodes() -> None:
    assert ItlBudget(learned(), 16, target_ns=MS).max_tokens(0, 0) == UNLIMITED


def test_until_something_is_known_nothing_is_limited() -> None:
    assert ItlBudget(StepCost(), 16, target_ns=MS).max_tokens(10, 0) == UNLIMITED
