"""What stands for that of a message which is no data: a launched step, and who waits for an answer."""

from pipeline.errors import RequestError
from pipeline.messages.parts import Message
from pipeline.messages.requests import Completion
from pipeline.messages.sampling import Logprobs, TokenLogprob
from pipeline.messages.steps import StepHandle, StepPlan


class TakesAll:
    """Implements ClientSink, LogprobsSink and TokenReply: takes everything, and costs nothing."""

    def delta(self, text: str, num_tokens: int) -> None: ...

    def logprobs(self, entries: list[TokenLogprob]) -> None: ...

    def done(self, completion: Completion) -> None: ...

    def tokens(self, value: list[int] | str) -> None: ...

    def error(self, error: RequestError) -> None: ...

    def buffered_bytes(self) -> int:
        return 0

    def is_away(self) -> bool:
        return False


TAKES_ALL = TakesAll()


class RecordedStep(Message, frozen=True):
    """Implements StepHandle: a step that is done, and what came of it."""

    plan: StepPlan
    begin_ns: int
    end_ns: int
    token_ids: list[int]
    drops: list[list[int]]
    embeddings: list[bytes]
    logprobs: Logprobs | None = None
    scores: Logprobs | None = None

    @classmethod
    def of(cls, step: StepHandle) -> "RecordedStep":
        """Waits for the device; raises what its fault raises."""
        if isinstance(step, cls):
            return step
        token_ids = step.token_ids_sync()  # first: the times are there once it is done
        return cls(
            step.plan,
            step.begin_ns,
            step.end_ns,
            token_ids,
            step.drops_sync(),
            step.embeddings_sync(),
            step.logprobs_sync(),
            step.scores_sync(),
        )

    def is_ready(self) -> bool:
        return True

    def token_ids_sync(self) -> list[int]:
        return self.token_ids

    def drops_sync(self) -> list[list[int]]:
        return self.drops

    def logprobs_sync(self) -> Logprobs | None:
        return self.logprobs

    def scores_sync(self) -> Logprobs | None:
        return self.scores

    def embeddings_sync(self) -> list[bytes]:
        return self.embeddings
