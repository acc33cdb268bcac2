"""StepWork: the five numbers of a plan that its cost depends on."""

from typing import NamedTuple, Protocol

from pipeline.messages import StepPlan


class StepWork(NamedTuple):
    num_tokens: int
    """T: through the linear layers."""
    num_rows: int
    """R: sequences."""
    num_sampled: int
    """Rows that need logits."""
    num_kv: int
    """Tokens whose KV is read: the contexts of all rows, this step's tokens included."""
    num_attended: int
    """Pairs of a token and a token that it attends to: quadratic in a prefill, `num_kv` in a decode."""

    @property
    def num_prefill(self) -> int:
        """Tokens beyond one a row."""
        return self.num_tokens - self.num_rows

    @property
    def num_prefill_attended(self) -> int:
        """Attended pairs beyond one pass over the contexts."""
        return self.num_attended - self.num_kv


class Cost(Protocol):
    """What a step takes."""

    def step_ns(self, work: StepWork) -> int: ...

    def decode_ns(self, num_rows: int) -> tuple[float, float]:
        """(a, b): a step of so many rows of one token each takes int(a + b * num_kv), as step_ns says."""
        ...


def work_of(plan: StepPlan) -> StepWork:
    num_tokens, num_rows = len(plan.token_ids), len(plan.slots)
    num_kv = num_attended = sum(plan.num_computed) + num_tokens
    if num_tokens != num_rows:
        for count, start in zip(plan.num_tokens, plan.num_computed, strict=True):
            if count > 1:  # token i of the chunk attends to start + i + 1: add what is beyond start + count
                num_attended += (count - 1) * start + count * (count - 1) // 2
    return StepWork(num_tokens, num_rows, sum(plan.samples), num_kv, num_attended)
