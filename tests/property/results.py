"""What a step comes to, as the sample stage tells it, and what a request would get alone."""

from itertools import compress

from pipeline.messages import PooledRow, SampledBatch, SamplingParams, StepHandle
from pipeline.runtime.testing import fake_token

EOS = 40


def batch_of(handle: StepHandle, times_ns: tuple[int, int, int, int]) -> SampledBatch:
    """`times_ns`: after it was planned."""
    plan = handle.plan
    pooled = [
        PooledRow(plan.request_ids[row], plan.epochs[row], embedding)
        for row, embedding in zip(plan.pooled, handle.embeddings_sync(), strict=True)
    ]
    return SampledBatch(
        plan.step_id,
        list(compress(plan.request_ids, plan.samples)),
        list(compress(plan.epochs, plan.samples)),
        handle.token_ids_sync(),
        (plan.planned_ns, *times_ns),
        handle.drops_sync(),
        pooled=pooled,
    )


def tokens_alone(sampling: SamplingParams, num_prompt_tokens: int) -> list[int]:
    tokens: list[int] = []
    for k in range(sampling.max_tokens or 0):
        tokens.append(fake_token(sampling, num_prompt_tokens + k))
        if tokens[-1] == EOS and not sampling.ignore_eos:
            break
    return tokens
