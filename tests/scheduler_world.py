"""A scheduler on virtual time: every step takes as long as it is told to, and its result comes at once."""

from collections.abc import Callable, Iterable
from typing import Any

from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.scheduling import Scheduler
from pipeline.core.sequence import Sequence
from pipeline.messages import (
    DeviceReady,
    PooledRow,
    Rejected,
    SampledBatch,
    SamplingParams,
    StepPlan,
    Terms,
    TokenizedRequest,
)
from pipeline.runtime.testing import fake_drops, fake_embedding

MS = 1_000_000
EOS = 2


def request(
    request_id: int, prompt: int = 4, max_tokens: int = 4, *, arrived_ms: float = 0, **terms: Any
) -> TokenizedRequest:
    arrived_ns = int(arrived_ms * MS)
    sampling = SamplingParams(max_tokens=max_tokens)
    return TokenizedRequest(
        request_id, [5] * prompt, sampling, arrived_ns, arrived_ns, (0, 0, 0), Terms(**terms)
    )


def sequence(request_id: int, prompt: int = 4, max_tokens: int = 4, **rest: Any) -> Sequence:
    """A waiting one, expected to take all its max_tokens."""
    made = Sequence.of(request(request_id, prompt, max_tokens, **rest))
    made.predicted_tokens = max_tokens
    return made


def scheduler(device: DeviceReady, **options: Any) -> Scheduler:
    return Scheduler(device, (EOS,), make_policies(SchedulingOptions(**options), device))


def sampled(plan: StepPlan, end_ns: int, token_id: int = 7) -> SampledBatch:
    """The result of a step that began when it was planned: `token_id` in every row that yields one."""
    rows = [k for k, samples in enumerate(plan.samples) if samples]
    return SampledBatch(
        plan.step_id,
        [plan.request_ids[k] for k in rows],
        [plan.epochs[k] for k in rows],
        [token_id] * len(rows),
        (plan.planned_ns, plan.planned_ns, end_ns, end_ns, end_ns),
        [fake_drops(plan.step_id, question) for question in plan.questions],
        pooled=[
            PooledRow(
                plan.request_ids[k],
                plan.epochs[k],
                fake_embedding(plan.num_computed[k] + plan.num_tokens[k]),
            )
            for k in plan.pooled
        ],
    )


class World:
    """Runs a scheduler over requests that arrive on time.

    Args:
        step_ns: what a step takes.
    """

    def __init__(self, core: Scheduler, step_ns: Callable[[StepPlan], int] = lambda plan: MS) -> None:
        self.core = core
        self.now_ns = 0
        self.admitted: list[tuple[int, int]] = []
        """Request id and time, each time one got a slot."""
        self.plans: list[StepPlan] = []
        self.rejected: list[Rejected] = []
        self.after_step: Callable[[], None] = lambda: None
        self._step_ns = step_ns

    @property
    def order(self) -> list[int]:
        """Request ids in the order of admission."""
        return [request_id for request_id, _ in self.admitted]

    def add(self, *requests: TokenizedRequest) -> None:
        for each in requests:
            assert self.core.add(each) is None

    def run(self, arrivals: Iterable[TokenizedRequest] = (), *, until_ns: int | None = None) -> None:
        """Until all have ended, or the time has come."""
        coming = sorted(arrivals, key=lambda each: each.arrived_ns, reverse=True)
        while coming or not self.core.is_idle:
            if until_ns is not None and self.now_ns >= until_ns:
                return
            while coming and coming[-1].arrived_ns <= self.now_ns:
                self.add(coming.pop())
            if not self.step():
                times_ns = [coming[-1].arrived_ns] if coming else []
                times_ns += [self.core.wake_ns] if self.core.wake_ns is not None else []
                if not times_ns:
                    return
                self.now_ns = max(self.now_ns + 1, min(times_ns))

    def step(self) -> bool:
        """One step; False if there was nothing to plan."""
        self.rejected += self.core.shed(self.now_ns)
        plan = self.core.plan(self.now_ns)
        if plan is None:
            self.core.take_tokens(self.now_ns)
            return False
        self.plans.append(plan)
        self.admitted += [(each.request_id, self.now_ns) for each in plan.admitted]
        self.now_ns += self._step_ns(plan)
        self.core.apply(sampled(plan, self.now_ns), self.now_ns)
        self.core.take_tokens(self.now_ns)
        self.after_step()
        return True
