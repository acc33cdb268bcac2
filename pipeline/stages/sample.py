"""Sample: StepHandle -> SampledBatch, the host half of sampling.

The device half, `device_op`, is launched by the runner right after the forward pass; a stage that samples
another way names its own and inherits the rest.
"""

import asyncio
from collections.abc import Sequence
from itertools import compress
from typing import ClassVar

from pipeline.messages import PooledRow, SampledBatch, StepHandle
from pipeline.runtime.stage import NoOptions, NoState, Stage


class Sample(Stage[StepHandle, NoOptions]):
    """Takes the tokens of each step off the device and hands them to the scheduler, in step order."""

    takes = (StepHandle,)
    gives = (SampledBatch,)
    State = NoState
    is_revocable = True

    device_op: ClassVar[str] = "pipeline.gpu.sampling:SamplingOp"
    """Import path of the SamplingOp that the runner launches, made with this stage's options.

    A path, because only gpu imports torch.
    """

    async def handle(self, batch: Sequence[StepHandle]) -> None:
        for step in batch:
            taken_ns = self.ctx.clock()
            if step.is_ready():
                token_ids = step.token_ids_sync()
            else:
                token_ids = await asyncio.to_thread(step.token_ids_sync)
            drops = step.drops_sync()  # the step is done
            plan = step.plan
            now_ns = self.ctx.clock()
            self.ctx.outlet(SampledBatch).post(
                SampledBatch(
                    step_id=plan.step_id,
                    request_ids=list(compress(plan.request_ids, plan.samples)),
                    epochs=list(compress(plan.epochs, plan.samples)),
                    token_ids=token_ids,
                    times_ns=(
                        plan.planned_ns,
                        step.begin_ns,
                        step.end_ns,
                        max(taken_ns, step.end_ns),
                        now_ns,
                    ),
                    drops=drops,
                    logprobs=step.logprobs_sync(),
                    scores=step.scores_sync(),
                    pooled=_pooled(step) if plan.pooled else [],
                )
            )


def _pooled(step: StepHandle) -> list[PooledRow]:
    plan = step.plan
    return [
        PooledRow(plan.request_ids[row], plan.epochs[row], embedding)
        for row, embedding in zip(plan.pooled, step.embeddings_sync(), strict=True)
    ]
