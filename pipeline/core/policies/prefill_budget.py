"""PrefillBudget: how much prefill a step may carry beside its decode rows."""

from pipeline.core.step_cost import UNLIMITED, StepCost


class FixedBudget:
    """As much as max_num_batched_tokens leaves: prompts are soonest done, and decode rows wait for them."""

    def max_tokens(self, num_decode_tokens: int, num_kv_tokens: int) -> int:
        return UNLIMITED


class ItlBudget:
    """As much as keeps the step within a time, by what steps have cost so far.

    Never less than `min_tokens`, so that a prompt of n tokens is done after n / min_tokens steps even where
    the decode rows alone take longer. Without decode rows there is nobody to wait.

    Args:
        target_ns: the time; None: that of the step's decode rows alone, `stretch` times over.
    """

    def __init__(
        self, cost: StepCost, min_tokens: int, *, target_ns: int | None = None, stretch: float = 1.0
    ) -> None:
        self._cost = cost
        self._min_tokens = min_tokens
        self._target_ns = target_ns
        self._stretch = stretch

    def max_tokens(self, num_decode_tokens: int, num_kv_tokens: int) -> int:
        if not num_decode_tokens:
            return UNLIMITED
        target_ns: float | None = self._target_ns
        if target_ns is None:
            target_ns = self._stretch * self._cost.predict_ns(0, num_decode_tokens, num_kv_tokens)
        within = self._cost.prefill_tokens_within(target_ns, num_decode_tokens, num_kv_tokens)
        return max(self._min_tokens, within)
