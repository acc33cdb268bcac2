"""Device: a recording of schedule's inbox, replayed as what it was: requests, and a device that answers.

A scheduler that is given the results of steps it has not planned is given nonsense, so the loop is closed
here: each plan is answered with the tokens that the requests had, after the time that this step, counted from
the first, has taken. Plans that are made otherwise than they were are answered all the same. Where others are
replayed beside it, a plan is answered when the next recorded step came back.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import compress
from typing import NamedTuple

from pipeline.bench.replay.anew import Change, anew, unchanged
from pipeline.bench.replay.pace import Pace
from pipeline.bench.replay.recorded_device import RecordedDevice
from pipeline.bench.stand import Feed, Stand
from pipeline.errors import StagelineError
from pipeline.messages import (
    NO_TOKEN,
    Cancel,
    FinishReason,
    PooledRow,
    Rejected,
    SampledBatch,
    StepPlan,
    TokenBatch,
    TokenizedRequest,
)
from pipeline.runtime.recording import Entry, Recording
from pipeline.runtime.testing import fake_drops, fake_embedding

_FILLER = 0
"""A token of a request of which nothing was recorded."""
_EARLY_NS = 2_000_000
"""So much earlier than it was may a step be planned, and still be the same."""


class _Answer(NamedTuple):
    due_ns: int
    step: SampledBatch


class DeviceReplay(Feed):
    """`send` counts steps; with the last one of the recording it goes on until nobody lives.

    A request ends as it did: by itself, or by a cancel with its last recorded token. One whose end is not
    recorded is cancelled there.
    """

    def __init__(self, recording: Recording, pace: Pace, change: Change = unchanged) -> None:
        super().__init__()
        self._change = change
        self._device = RecordedDevice(recording)
        if not self._device.lags:
            raise StagelineError(
                "the recording holds no result of a step: it must be of all links to schedule"
            )
        self.num_messages = len(self._device.lags)
        """Steps of the recording."""
        self._arrivals = deque(self._device.arrivals(recording.entries))
        self._begin_ns = recording.header.begin_ns
        self._pace = pace
        self._prompts: dict[int, int] = {}
        """Prompt tokens of each live request, and"""
        self._given: dict[int, int] = {}
        """the output tokens that the scheduler has given of it."""
        self._answers: dict[int, deque[_Answer]] = {}
        """Of each worker, in their order."""
        self._end_ns: dict[int, int] = {}
        """When the last step that each worker was given is done."""
        self._num_planned = self._num_answered = self._num_asked = 0
        self._is_told = self._has_ended = False
        self._changed = asyncio.Event()
        self._called_ns = 0
        """When the pace calls next; 0: nothing says that it does."""

    async def send(self, stand: Stand, num_messages: int) -> None:
        if not self._is_told:
            self._is_told = True
            stand.inbox.post(self._device.ready)
        self._num_asked += num_messages
        while not self._is_done():
            self._changed.clear()
            await self._wait(stand)
            self._arrive(stand)
            self._answer(stand)
            await asyncio.sleep(0)
        while not stand.is_at_rest:  # noqa: ASYNC110 - a pass of the loop, not a time
            await asyncio.sleep(0)

    def gave(self, stand: Stand, message: object) -> None:
        if isinstance(message, StepPlan):
            self._plan(stand, message)
        elif isinstance(message, TokenBatch):
            self._tell(stand, message)
        elif isinstance(message, Rejected):
            self._forget(message.request_id)
        self._changed.set()

    def end(self, stand: Stand) -> None:
        self._has_ended = True
        for request_id in list(self._prompts):
            stand.inbox.post(Cancel(request_id, FinishReason.CANCELLED))
        for answers in self._answers.values():
            while answers:
                stand.inbox.post(answers.popleft().step)

    # What comes -----------------------------------------------------------------------------

    def _is_done(self) -> bool:
        if not self._arrivals and not self._prompts and not any(self._answers.values()):
            return True  # other steps than those recorded may take fewer
        return self._num_answered >= self._num_asked and self._num_asked < self.num_messages

    async def _wait(self, stand: Stand) -> None:
        """Until something is due, or the scheduler has planned."""
        now_ns = stand.clock()
        due_ns = min(self._dues(now_ns), default=None)
        if due_ns is not None:
            if not self._pace.factor or due_ns <= now_ns:
                return
            if due_ns != self._called_ns:
                self._called_ns = due_ns
                self._pace.call_in(due_ns - now_ns, self._called)
        await self._changed.wait()

    def _called(self) -> None:
        self._called_ns = 0
        self._changed.set()

    def _dues(self, now_ns: int) -> Iterator[int]:
        if self._arrivals:
            yield self._pace.due_ns(self._arrivals[0].at_ns, now_ns)
        yield from (answers[0].due_ns for answers in self._answers.values() if answers)

    def _arrive(self, stand: Stand) -> None:
        now_ns = stand.clock()
        while self._arrivals:
            entry = self._arrivals[0]
            if self._pace.factor and self._pace.due_ns(entry.at_ns, now_ns) > now_ns:
                return
            if not self._put(stand, entry):
                return
            self._arrivals.popleft()

    def _put(self, stand: Stand, entry: Entry) -> bool:
        """False: the inbox is full."""
        message = self._change(anew(entry.message, stand.clock() - self._begin_ns - entry.at_ns))
        if entry.is_control:
            stand.inbox.post(message)
            return True
        num_prompt_tokens = len(message.token_ids) if isinstance(message, TokenizedRequest) else 0
        if not stand.inbox.offer(message):
            return False
        if isinstance(message, TokenizedRequest):
            self._prompts[message.request_id] = num_prompt_tokens
        return True

    def _answer(self, stand: Stand) -> None:
        """One step at most, as a device ends one after the other."""
        now_ns = stand.clock()
        for answers in self._answers.values():
            if answers and answers[0].due_ns <= now_ns:
                self._num_answered += 1
                self.recorded_ns = self._device.since_first_ns(self._num_answered)
                stand.inbox.post(answers.popleft().step)
                return

    # What the scheduler gives ---------------------------------------------------------------

    def _plan(self, stand: Stand, plan: StepPlan) -> None:
        self.num_rows += len(plan.slots)
        answers, now_ns = self._answers.setdefault(plan.worker, deque()), stand.clock()
        begin_ns, end_ns, due_ns = self._step_ns(plan.worker, now_ns)
        self._end_ns[plan.worker] = end_ns
        answers.append(_Answer(due_ns, self._result(plan, begin_ns, end_ns, due_ns)))
        if self._has_ended:
            stand.inbox.post(answers.popleft().step)

    def _step_ns(self, worker: int, now_ns: int) -> tuple[int, int, int]:
        """When the step that is planned now begins, ends, and comes back."""
        pace, lags = self._pace, self._device.lags
        came_ns = self._came_ns(now_ns) if pace.is_shared else None
        lag = lags[min(self._num_planned, len(lags) - 1)]
        if came_ns is not None or not pace.is_shared:
            self._num_planned += 1
        if came_ns is not None:
            end_ns = came_ns - pace.scaled(lag.return_ns)
            return end_ns - pace.scaled(lag.device_ns), end_ns, came_ns
        begin_ns = max(now_ns, self._end_ns.get(worker, 0)) + pace.scaled(lag.launch_ns)
        end_ns = begin_ns + pace.scaled(lag.device_ns)
        return begin_ns, end_ns, end_ns + pace.scaled(lag.return_ns)

    def _came_ns(self, now_ns: int) -> int | None:
        """When the next recorded step that is still to come came back; None: it was not even planned by now.

        With others replayed beside it a step comes back when one did: after its own time alone it would drift
        away from what they do.
        """
        pace, sent_ns, planned_ns = self._pace, self._device.sent_ns, self._device.planned_ns
        while self._num_planned < len(sent_ns) and pace.due_ns(sent_ns[self._num_planned], now_ns) <= now_ns:
            self._num_planned += 1
        if self._num_planned == len(sent_ns):
            return None
        if pace.due_ns(planned_ns[self._num_planned], now_ns) > now_ns + _EARLY_NS:
            return None
        return pace.due_ns(sent_ns[self._num_planned], now_ns)

    def _result(self, plan: StepPlan, begin_ns: int, end_ns: int, sent_ns: int) -> SampledBatch:
        return SampledBatch(
            step_id=plan.step_id,
            request_ids=list(compress(plan.request_ids, plan.samples)),
            epochs=list(compress(plan.epochs, plan.samples)),
            token_ids=[self._token(plan, row) for row in compress(range(len(plan.slots)), plan.samples)],
            times_ns=(plan.planned_ns, begin_ns, end_ns, end_ns, sent_ns),
            drops=[fake_drops(plan.step_id, question) for question in plan.questions],
            pooled=[self._pooled(plan, row) for row in plan.pooled],
        )

    def _token(self, plan: StepPlan, row: int) -> int:
        """What the request had at this place; past what was recorded, its last one."""
        request_id = plan.request_ids[row]
        place = plan.num_computed[row] + plan.num_tokens[row] - self._prompts.get(request_id, 0)
        token_ids = self._device.token_ids.get(request_id, ())
        return token_ids[min(max(place, 0), len(token_ids) - 1)] if token_ids else _FILLER

    def _pooled(self, plan: StepPlan, row: int) -> PooledRow:
        request_id, num_tokens = plan.request_ids[row], plan.num_computed[row] + plan.num_tokens[row]
        embedding = self._device.embeddings.get(request_id) or fake_embedding(num_tokens)
        return PooledRow(request_id, plan.epochs[row], embedding)

    def _tell(self, stand: Stand, batch: TokenBatch) -> None:
        for request_id, token_id, finish in zip(
            batch.request_ids, batch.token_ids, batch.finish_reasons, strict=True
        ):
            if finish:
                self._forget(request_id)
                continue
            self._given[request_id] = given = self._given.get(request_id, 0) + (token_id != NO_TOKEN)
            if given == max(1, len(self._device.token_ids.get(request_id, ()))):
                self._cancel(stand, request_id)

    def _cancel(self, stand: Stand, request_id: int) -> None:
        """As it was, with its last recorded token."""
        cancel = self._device.cancels.get(request_id, Cancel(request_id, FinishReason.CANCELLED))
        stand.inbox.post(cancel)
        if cancel.reason is FinishReason.STOP:  # no row is owed
            self._forget(request_id)

    def _forget(self, request_id: int) -> None:
        self._prompts.pop(request_id, None)
        self._given.pop(request_id, None)
