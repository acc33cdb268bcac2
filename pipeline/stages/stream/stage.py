"""Stream: TextBatch -> the clients' sinks. Merges small pieces, and holds back whoever does not read.

A wake-up costs one pass over the rows and at most one timer, however many clients there are. Text is merged
by core.coalesce's rule. A client whose buffer is full gets nothing more: its text is merged here, its
request is paused, and after `slow_client_s` cancelled; nobody else waits for it. A client that grants
credit gets no more tokens than that (core.credit): its request is paused until it grants more, and after
`max_paused_s` cancelled.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from pipeline.core.answer import NEVER_DUE, Answer, Ending, Gone
from pipeline.core.coalesce import FlushRule
from pipeline.core.credit import Credit
from pipeline.core.text_state import StreamState
from pipeline.errors import RequestError
from pipeline.messages import (
    Cancel,
    FinishReason,
    Grant,
    Open,
    Pause,
    Rejected,
    Resume,
    SpelledLogprobs,
    TextBatch,
)
from pipeline.runtime.equivalence import BY_REQUEST
from pipeline.runtime.stage import Stage, StageContext
from pipeline.runtime.trace import Point
from pipeline.stages.stream import records
from pipeline.stages.stream.held_sink import bare_sinks, hold_sinks
from pipeline.stages.stream.options import StreamOptions
from pipeline.telemetry import Telemetry

_AGAIN_S = 0.001
"""After so long the timer looks whether the batch under way is known to be right."""


class Stream(Stage[TextBatch | Open | Grant | Rejected, StreamOptions]):
    """Owns the sinks. Each gets any number of deltas, then exactly one `done` or `error`."""

    Options = StreamOptions
    takes = (TextBatch, Open, Grant, Rejected)
    gives = (Cancel, Pause, Resume)
    State = StreamState
    is_revocable = True
    equivalence = BY_REQUEST

    def __init__(self, ctx: StageContext, options: StreamOptions) -> None:
        super().__init__(ctx, options)
        self._rule = FlushRule(options.flush_tokens, int(options.flush_ms * 1e6))
        self._poll_ns = max(self._rule.max_wait_ns, 1_000_000)
        self._slow_ns = int(options.slow_client_s * 1e9)
        self._max_paused_ns = int(options.max_paused_s * 1e9)
        self._answers: dict[int, Answer] = {}
        self._ended = asyncio.Event()
        self._waiting: dict[int, Answer] = {}
        """Those with a due_ns: text to write later, or a full buffer."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = self._next_ns = NEVER_DUE
        telemetry = ctx.resource(Telemetry)
        self._journal = telemetry.journal
        self._add_itl: Callable[[int, int], None] = telemetry.itl.add
        if ctx.hold is not None:
            self._add_itl = partial(ctx.do, telemetry.itl.add)
        self._step: TextBatch | None = None
        """The latest that came, and"""
        self._taken_ns = 0
        """when."""

    @property
    def num_live(self) -> int:
        """Requests without an ending yet; 0 when idle."""
        return len(self._answers)

    def gauges(self) -> dict[str, float]:
        return {"cut_off_requests": sum(answer.is_gone for answer in self._answers.values())}

    def export_state(self) -> StreamState:
        if not self._answers:
            return StreamState()
        answers = tuple(bare_sinks(answer.copy()) for answer in self._answers.values())
        return StreamState(answers, self._step, self._taken_ns)

    def import_state(self, state: StreamState) -> None:
        self._disarm()
        self._step, self._taken_ns = state.step, state.taken_ns
        self._answers.clear()
        self._waiting.clear()
        for answer in state.answers:
            answer.go_by(self._rule)
            self._take_up(answer)
            if answer.due_ns != NEVER_DUE:
                self._wait(answer, answer.due_ns)
        self._arm()

    async def handle(self, batch: Sequence[TextBatch | Open | Grant | Rejected]) -> None:
        now_ns = self.ctx.clock()
        for message in batch:
            if isinstance(message, TextBatch):
                self._write(message, now_ns)
            elif isinstance(message, Open):
                self._take_up(Answer(message, self._rule))
            elif isinstance(message, Grant):
                self._grant(message, now_ns)
            else:
                self._reject(message)
        self._arm()

    async def drain(self) -> None:
        """Wait, at most slow_client_s, for clients that have their whole text but not read it."""
        while any(answer.ending for answer in self._answers.values()):
            self._ended.clear()
            await self._ended.wait()

    async def stop(self) -> None:
        self._disarm()
        for answer in self._answers.values():  # nobody is left without an ending
            answer.sink.error(RequestError("The server has stopped.", status=503, code="server_stopped"))
        self._answers.clear()
        self._waiting.clear()

    def _take_up(self, answer: Answer) -> None:
        hold = self.ctx.hold
        self._answers[answer.request_id] = answer if hold is None else hold_sinks(answer, hold)

    # Rows -----------------------------------------------------------------------------------

    def _write(self, step: TextBatch, now_ns: int) -> None:
        answers = self._answers
        self._step, self._taken_ns = step, now_ns
        for started in step.started:
            if answer := answers.get(started.request_id):
                answer.num_prompt_tokens = started.num_prompt_tokens
                answer.num_cached_tokens = started.num_cached_tokens
        for times in step.times:
            if answer := answers.get(times.request_id):
                answer.base_ns, answer.worker = times.base_ns, times.worker
                answer.num_preemptions = times.num_preemptions
                answer.num_dropped_tokens = times.num_dropped_tokens
        for request_id, embedding in step.embeddings.items():
            if answer := answers.get(request_id):
                answer.embedding = embedding
        if step.logprobs is not None:
            self._take_logprobs(step.logprobs)
        if step.scores is not None:
            for request_id, entry in zip(step.scores.request_ids, step.scores.entries, strict=True):
                if answer := answers.get(request_id):
                    answer.scores.append(entry)
        for request_id, text, num_tokens, finish in zip(
            step.request_ids, step.texts, step.num_tokens, step.finish_reasons, strict=True
        ):
            answer = answers.get(request_id)
            if answer is None:
                continue
            if answer.credit is not None:
                text, num_tokens = self._spend(answer, answer.credit, text, num_tokens, now_ns)
            answer.text += text
            answer.num_pending += num_tokens
            if finish:
                self._finish(answer, answer.end(step, FinishReason(finish), now_ns), now_ns)
            elif answer.paused_ns is None:
                if answer.rule.is_due(answer.num_pending, answer.last_ns, now_ns) or answer.spent_ns:
                    self._flush(answer, now_ns)
                elif answer.due_ns == NEVER_DUE:
                    self._wait(answer, answer.rule.due_ns(answer.last_ns))

    def _take_logprobs(self, told: SpelledLogprobs) -> None:
        for request_id, entry in zip(told.request_ids, told.entries, strict=True):
            answer = self._answers.get(request_id)
            if answer is not None and answer.logprobs_sink is not None:
                answer.logprobs.append(entry)

    def _flush(self, answer: Answer, now_ns: int) -> None:
        """Write what text there is, or pause a client that does not read."""
        if answer.sink.buffered_bytes() > self.options.client_buffer_bytes:
            self._pause(answer, now_ns)
            return
        self._unwait(answer)
        if answer.text:
            self._delta(answer, now_ns)
        if answer.spent_ns is not None:
            self._wait(answer, answer.spent_ns + self._max_paused_ns)

    def _delta(self, answer: Answer, now_ns: int) -> None:
        text, num_tokens = answer.take()
        answer.tell_logprobs()
        answer.sink.delta(text, num_tokens)
        if answer.ttft_ns is None:
            at_ns = self.ctx.clock()
            assert self._step is not None, "it brought the text"
            answer.first(self._step, self._taken_ns, at_ns)
            self._trace(Point.FIRST_TOKEN, answer, at_ns)
        elif num_tokens and not isinstance(answer.sink, Gone):
            self._add_itl((now_ns - answer.last_ns) // num_tokens, num_tokens)
        answer.last_ns = now_ns

    # Endings --------------------------------------------------------------------------------

    def _reject(self, rejected: Rejected) -> None:
        answer = self._answers.pop(rejected.request_id, None)
        if answer is None:
            return
        self._unwait(answer)
        now_ns = self.ctx.clock()
        self._trace(Point.FINISHED, answer, now_ns)
        self.ctx.do(self._journal.request, records.refused(answer, rejected, now_ns))
        answer.sink.error(
            RequestError(
                rejected.message,
                status=rejected.status,
                param=rejected.param,
                code=rejected.code,
                retry_after_s=rejected.retry_after_s,
            )
        )

    def _finish(self, answer: Answer, ending: Ending, now_ns: int) -> None:
        """The terminal row has come; a client whose buffer is full gets it when it has read some, one whose
        credit is spent when it has granted what is still held. Who cancels is told nothing more.
        """
        if answer.credit is not None and ending.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            answer.num_written += answer.credit.discard()
        if answer.paused_ns is None and answer.sink.buffered_bytes() > self.options.client_buffer_bytes:
            self._pause(answer, now_ns)
        if answer.may_end:
            self._end(answer, ending)
        elif answer.paused_ns is None:
            self._flush(answer, now_ns)

    def _end(self, answer: Answer, ending: Ending) -> None:
        if answer.text or answer.logprobs:
            self._delta(answer, self.ctx.clock())
        now_ns = self.ctx.clock()
        completion = answer.completion(ending, now_ns)
        self._unwait(answer)
        del self._answers[answer.request_id]
        self._ended.set()
        self._trace(Point.FINISHED, answer, now_ns)
        self.ctx.do(records.tell_ended, self._journal, answer, completion)
        if ending.finish_reason is FinishReason.ERROR:
            answer.sink.error(
                RequestError("The server failed on this request.", status=500, code="internal_error")
            )
        else:
            answer.sink.done(completion)

    def _trace(self, point: Point, answer: Answer, at_ns: int) -> None:
        self.ctx.do(self.ctx.trace.record, point, self.ctx.name, answer.request_id, 1, at_ns)

    # Those who take their time ---------------------------------------------------------------

    def _pause(self, answer: Answer, now_ns: int) -> None:
        """Its client's buffer is full."""
        answer.paused_ns = now_ns
        self._hold_back(answer)
        self._wait(answer, now_ns + self._poll_ns)

    def _look_again(self, answer: Answer, paused_ns: int, now_ns: int) -> None:
        """A paused client: has it read, or has it had its time?"""
        if answer.sink.buffered_bytes() <= self.options.client_buffer_bytes // 2:
            answer.paused_ns = None
            answer.total_paused_ns += now_ns - paused_ns
            self._go_on(answer, now_ns)
        elif answer.sink.is_away():
            answer.total_paused_ns += now_ns - paused_ns
            self._pause(answer, now_ns)
        elif now_ns - paused_ns >= self._slow_ns:
            answer.total_paused_ns += now_ns - paused_ns
            self._give_up(answer, slow_client(self.options.slow_client_s))
        else:
            self._wait(answer, now_ns + self._poll_ns)

    def _spend(
        self, answer: Answer, credit: Credit, text: str, num_tokens: int, now_ns: int
    ) -> tuple[str, int]:
        """What of a row is within the credit. The scheduler is told when it is spent."""
        taken = credit.take(text, num_tokens)
        if credit.is_spent and answer.spent_ns is None:
            answer.spent_ns = now_ns
            self._hold_back(answer)
        return taken

    def _grant(self, grant: Grant, now_ns: int) -> None:
        answer = self._answers.get(grant.request_id)
        if answer is None or answer.credit is None:
            return  # it has ended, or was given up
        text, num_tokens = answer.credit.grant(grant.num_tokens)
        answer.text += text
        answer.num_pending += num_tokens
        answer.spent_ns = now_ns if answer.credit.is_spent else None
        if answer.paused_ns is None:
            self._go_on(answer, now_ns)

    def _go_on(self, answer: Answer, now_ns: int) -> None:
        """It has room, or credit, again."""
        if answer.ending is not None and answer.may_end:
            self._end(answer, answer.ending)
            return
        self._hold_back(answer)
        self._flush(answer, now_ns)

    def _hold_back(self, answer: Answer) -> None:
        """Tell the scheduler whether to plan more of it, if that has changed."""
        is_held_back = answer.paused_ns is not None or answer.spent_ns is not None
        if answer.ending is None and is_held_back != answer.is_held_back:
            answer.is_held_back = is_held_back
            message = Pause(answer.request_id) if is_held_back else Resume(answer.request_id)
            self.ctx.outlet(type(message)).post(message)

    def _give_up(self, answer: Answer, error: RequestError) -> None:
        answer.sink.error(error)
        answer.give_up()
        self.service.num_errors += 1
        self._unwait(answer)
        if answer.ending is not None:
            self._end(answer, msgspec.structs.replace(answer.ending, finish_reason=FinishReason.CANCELLED))
        else:
            self.ctx.outlet(Cancel).post(Cancel(answer.request_id, FinishReason.CANCELLED))

    # The timer ------------------------------------------------------------------------------

    def _wait(self, answer: Answer, due_ns: int) -> None:
        answer.due_ns = due_ns
        self._waiting[answer.request_id] = answer
        if due_ns < self._next_ns:
            self._next_ns = due_ns

    def _unwait(self, answer: Answer) -> None:
        if answer.due_ns != NEVER_DUE:
            answer.due_ns = NEVER_DUE
            del self._waiting[answer.request_id]

    def _arm(self) -> None:
        """Set the one timer to the earliest due_ns."""
        if self._next_ns >= self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = self._next_ns
        delay_s = max(0, self._timer_ns - self.ctx.clock()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ns, self._next_ns = None, NEVER_DUE, NEVER_DUE

    def _on_timer(self) -> None:
        if (hold := self.ctx.hold) is not None and hold.is_on:  # what it did would be kept with the batch
            self._timer = asyncio.get_running_loop().call_later(_AGAIN_S, self._on_timer)
            return
        self._timer, self._timer_ns = None, NEVER_DUE
        now_ns = self.ctx.clock()
        for answer in list(self._waiting.values()):
            if answer.due_ns > now_ns:
                continue
            self._look(answer, now_ns)
        self._next_ns = min((answer.due_ns for answer in self._waiting.values()), default=NEVER_DUE)
        self._arm()

    def _look(self, answer: Answer, now_ns: int) -> None:
        """At one whose time has come."""
        if answer.paused_ns is not None:
            self._look_again(answer, answer.paused_ns, now_ns)
        elif answer.spent_ns is not None and now_ns - answer.spent_ns >= self._max_paused_ns:
            self._give_up(answer, no_credit(self.options.max_paused_s))
        else:
            self._flush(answer, now_ns)


def slow_client(full_s: float) -> RequestError:
    message = f"The client reads too slowly: its buffer was full for {full_s:g} s."
    return RequestError(message, status=408, code="slow_client")


def no_credit(spent_s: float) -> RequestError:
    message = f"The client has granted no tokens for {spent_s:g} s."
    return RequestError(message, status=408, code="no_credit")
