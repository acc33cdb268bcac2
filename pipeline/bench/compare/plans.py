"""Plans: whether a scheduler's plans can be run as they stand, which no token that it gives would tell."""

from pipeline.bench.feeds import Device, roomy, sampled_tokens
from pipeline.bench.samples import Load
from pipeline.bench.stand import Stand
from pipeline.errors import StagelineError
from pipeline.messages import StepPlan
from pipeline.runtime.testing import CheckingRunner, FakeHandle


class CheckedDevice(Device):
    """A device that looks at what the rows of a plan would read: each its own sequence's KV, and all of it.

    A fault is a StagelineError, and ends what the feed is for.
    """

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._workers = {0: _Reader(load)}

    def gave(self, stand: Stand, message: object) -> None:
        if isinstance(message, StepPlan):
            self._check(message)
        super().gave(stand, message)

    def _check(self, plan: StepPlan) -> None:
        if plan.worker not in self._workers:
            self._workers[plan.worker] = self._workers[0].fork()
        try:
            self._workers[plan.worker].launch(plan)
        except AssertionError as error:
            raise StagelineError(f"the plan of step {plan.step_id} cannot be run: {error}") from error
        except (IndexError, KeyError) as error:
            raise StagelineError(
                f"the plan of step {plan.step_id} names a block or slot that is not there"
            ) from error


class _Reader(CheckingRunner):
    """It samples what the feed says was sampled, so that what follows can be read as such."""

    def __init__(self, load: Load) -> None:
        super().__init__(roomy(load))
        self._load = load

    def fork(self) -> "_Reader":
        other = _Reader(self._load)
        other._cells = self._cells
        return other

    def _sample(self, plan: StepPlan, histories: list[int]) -> FakeHandle:
        return FakeHandle(plan, sampled_tokens(self._load, plan), 0, 0)
