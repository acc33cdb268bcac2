"""A step that was launched: what the sample stage gets of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from pipeline.gpu.device import Completion
from pipeline.gpu.kv.block_weights import least
from pipeline.gpu.logprobs import AskedLogprobs, DeviceLogprobs
from pipeline.messages import NO_TOKEN, Logprobs, StepPlan


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """Implements messages.StepHandle. What a fault of the device raises is raised where it is waited for.

    Args:
        completion: its results are token ids, then logprobs where `asked`, then the embeddings of its pooled
            rows, where it has any, then the weights that the plan's questions are answered from, likewise.
        failed: which of the sampling rows have no token, since their grammar has failed.
    """

    plan: StepPlan
    completion: Completion
    asked: AskedLogprobs | None = None
    failed: Sequence[int] = ()

    @property
    def begin_ns(self) -> int:
        return self.completion.begin_ns

    @property
    def end_ns(self) -> int:
        return self.completion.end_ns

    def is_ready(self) -> bool:
        return self.completion.is_done()

    def token_ids_sync(self) -> list[int]:
        token_ids: list[int] = self.completion.results_sync()[0].tolist()
        for row in self.failed:
            token_ids[row] = NO_TOKEN
        return token_ids

    def drops_sync(self) -> list[list[int]]:
        if not self.plan.questions:
            return []
        return least(self.completion.results_sync()[-1].numpy(), self.plan.questions)

    def embeddings_sync(self) -> list[bytes]:
        if not self.plan.pooled:
            return []
        rows = self.completion.results_sync()[self._num_before].numpy().astype("<f4", copy=False)
        return [row.tobytes() for row in rows]

    def logprobs_sync(self) -> Logprobs | None:
        if self.asked is None:
            return None
        columns = self.completion.results_sync()[1 : self._num_before]
        told = DeviceLogprobs(*columns)
        return told.to_message(self.asked, list(compress(self.plan.request_ids, self.plan.samples)))

    @property
    def _num_before(self) -> int:
        """Results before the embeddings."""
        return 1 if self.asked is None else 1 + len(DeviceLogprobs._fields)
