"""PrefillBudget: how much prefill a step may carry beside its decode rows."""

from pipeline.core.step_cost import UNLIMITED, StepCost


class FixedBudget:
    """As much as max_num_batched_tokens leaves: prompts are soonest done, and decode rows wait for them."""

    def max_tokens(self, num_decode_tokens: int, num_kv_tokens: int) -> int:
        return UNLIMITED


class ItlBudget:
    """As much as keeps the step within `target_ns`, by what steps have cost so far.

    Never less than `min_tokens`, so that a prompt of n tokens is done after n / min_tokens steps even where
    the decode rows alone take longer than the target. Without decode rows there is nobody to wait.
    """

    def __init__(self, cost: StepCost, target_ns: int, min_tokens: int) -> None:
        self._cost = cost
        self._target_ns = target_ns
        self._min_tokens = min_tokens

    def max_tokens(self, num_decode_tokens: int, num_kv_tokens: int) -> int:
        if not num_decode_tokens:
            return UNLIMITED
        within = self._cost.prefill_tokens_within(self._target_ns, num_decode_tokens, num_kv_tokens)
        return max(self._min_tokens, within)
