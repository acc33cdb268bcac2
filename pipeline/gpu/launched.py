"""A step that was launched: what the sample stage gets of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from pipeline.gpu.device import Completion
from pipeline.gpu.kv.block_weights import least
from pipeline.gpu.logprobs import AskedLogprobs, AskedScores, DeviceLogprobs
from pipeline.messages import NO_TOKEN, Logprobs, StepPlan


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """Implements messages.StepHandle. What a fault of the device raises is raised where it is waited for.

    Args:
        completion: its results are token ids, then logprobs where `asked`, then those of what is `scored`,
            then the embeddings of its pooled rows, where it has any, then the weights that the plan's
            questions are answered from, likewise.
        failed: which of the sampling rows have no token, since their grammar has failed.
    """

    plan: StepPlan
    completion: Completion
    asked: AskedLogprobs | None = None
    failed: Sequence[int] = ()
    scored: AskedScores | None = None

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
        at = 1 + self._num_told(self.asked) + self._num_told(self.scored)
        rows = self.completion.results_sync()[at].numpy().astype("<f4", copy=False)
        return [row.tobytes() for row in rows]

    def logprobs_sync(self) -> Logprobs | None:
        if self.asked is None:
            return None
        request_ids = list(compress(self.plan.request_ids, self.plan.samples))
        mine = [request_ids[row] for row in self.asked.rows.tolist()]
        return self._told(1).to_message(mine, self.asked.nums)

    def scores_sync(self) -> Logprobs | None:
        if self.scored is None:
            return None
        told = self._told(1 + self._num_told(self.asked))
        return told.to_message(self.scored.request_ids, self.scored.nums)

    def _told(self, at: int) -> DeviceLogprobs:
        return DeviceLogprobs(*self.completion.results_sync()[at : at + len(DeviceLogprobs._fields)])

    @staticmethod
    def _num_told(asked: object) -> int:
        """Results that are about it."""
        return 0 if asked is None else len(DeviceLogprobs._fields)
