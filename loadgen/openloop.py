"""Sends every job when its time has come, whatever the other answers do."""

import asyncio

from loadgen.agenda import Agenda
from loadgen.behaviours import Behaviours, Conduct
from loadgen.clients import Client
from loadgen.clock import RunClock
from loadgen.content import Contents
from loadgen.conversations import Conversations
from loadgen.record import Record
from loadgen.sessions import Sessions
from loadgen.workload import Job, Workload

GRACE_S = 5.0
"""After `stop`, how long requests may still end by themselves."""

RETRY_S = 1.0
"""Before another try, where a refusal does not say."""

_LOST = ("connect", "disconnected")


class OpenLoop:
    """One run. `records` holds every request that was sent; read it at any time.

    A job that follows an answer that never came whole is in `records` too, unsent: as failed with
    `predecessor_failed`, or as abandoned if that answer's client lost patience.

    Args:
        clock: started by `run`.
        timeout_s: after it a request is cancelled and has failed.
        seed: of the behaviours.
        keeps_texts: the answers are kept in the records.
    """

    def __init__(
        self,
        workload: Workload,
        client: Client,
        contents: Contents,
        clock: RunClock,
        timeout_s: float,
        behaviours: Behaviours | None = None,
        seed: int = 0,
        *,
        keeps_texts: bool = False,
    ) -> None:
        self.jobs = workload.jobs
        self.records: list[Record] = []
        self.live: dict[int, Record] = {}
        self.num_failed = 0
        self.num_tokens_ended = 0
        """Output tokens of the requests that have ended."""
        self.is_stopped = False
        self._client = client
        self._conversations = Conversations(workload.jobs, contents.prompt)
        self._clock = clock
        self._timeout_s = timeout_s
        self._behaviours = behaviours or Behaviours()
        self._seed = seed
        self._keeps_texts = keeps_texts
        self._sessions = Sessions(workload.jobs, workload.num_users)
        self._agenda = Agenda(self._sessions.begin(), clock)
        self._followed: dict[int | None, Record] = {}
        self._sender: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Returns when every request that was sent has ended."""
        self._clock.start()
        async with asyncio.TaskGroup() as group:
            self._sender = group.create_task(self._send_all(group), name="loadgen sender")

    def stop(self) -> None:
        """Sends no more, and gives the live requests GRACE_S to end. The second call ends them at once."""
        if self.is_stopped:
            self._abort()
            return
        self.is_stopped = True
        if self._sender is not None:
            self._sender.cancel()
        asyncio.get_running_loop().call_later(GRACE_S, self._abort)

    def _abort(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _send_all(self, group: asyncio.TaskGroup) -> None:
        for _ in self.jobs:
            intended_s, index = await self._agenda.next()
            job = self.jobs[index]
            record = Record(index, intended_s, job.num_input, job.num_output)
            self.records.append(record)
            self.live[index] = record
            if not self._can_follow(job, record):
                self._close(job, record)
                continue
            task = group.create_task(self._one(job, record))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _can_follow(self, job: Job, record: Record) -> bool:
        """False, with the reason in `record`, if there is no answer that the job could follow.

        An answer that the client cancelled is one, as far as it came.
        """
        before = self._followed.get(job.after)
        if before is None:
            return True
        if before.failure is not None:
            record.fail("predecessor_failed", f"request {before.index} failed: {before.failure.reason}")
        elif before.abandoned:
            record.abandoned, record.ended_by = True, "client"
        return record.failure is None and not record.abandoned

    async def _one(self, job: Job, record: Record) -> None:
        if self._keeps_texts or self._conversations.goes_on(job):
            record.text = ""
        conduct = self._behaviours.of(job.index, job.num_output, self._seed)
        try:
            await self._within_patience(job, record, conduct)
        except asyncio.CancelledError:
            record.fail("interrupted", "the run was stopped before the answer ended")
            raise
        finally:
            self._close(job, record)

    async def _within_patience(self, job: Job, record: Record, conduct: Conduct) -> None:
        """Ends the request early when its time is over, or when its client waits no longer for a token."""
        has_left = False

        def lose_patience() -> None:
            nonlocal has_left
            if not record.chunk_s:
                has_left = True
                limit.reschedule(loop.time())

        loop = asyncio.get_running_loop()
        patience = None
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                if conduct.patience_s is not None:
                    wait_s = record.intended_s + conduct.patience_s - self._clock()
                    patience = loop.call_later(wait_s, lose_patience)
                await self._answered(job, record, conduct)
        except TimeoutError:
            if has_left:
                record.abandoned, record.ended_by = True, "client"
            else:
                record.fail("timeout", f"no complete answer within {self._timeout_s:g} s")
        finally:
            if patience is not None:
                patience.cancel()

    async def _answered(self, job: Job, record: Record, conduct: Conduct) -> None:
        """Asks, and once more if the client reconnects. Latencies still count from the intended time."""
        prompt = self._conversations.prompt(job)
        await self._client.generate(prompt, job.num_output, record, conduct)
        if not (conduct.reconnects and _can_retry(record)):
            return
        sent_s = record.sent_s
        record.try_again()
        await asyncio.sleep(_retry_wait_s(record))
        await self._client.generate(prompt, job.num_output, record, conduct)
        record.sent_s = sent_s  # the wait was the server's doing, not lateness

    def _close(self, job: Job, record: Record) -> None:
        """The request has ended; whoever waited for it may go on."""
        record.closed_s = self._clock()
        del self.live[job.index]
        self.num_failed += record.failure is not None
        self.num_tokens_ended += record.num_output
        is_answered = record.failure is None and not record.abandoned
        if self._sessions.followers(job.index):
            self._followed[job.index] = record
            if is_answered:
                self._conversations.answered(job, record.text or "")
        if not self._keeps_texts:
            record.text = None
        for turn in self._sessions.ended(job.index, record.closed_s, is_answered=is_answered):
            self._agenda.add(turn)


def _can_retry(record: Record) -> bool:
    """Nothing of an answer has come, and another try makes sense."""
    failure = record.failure
    return failure is not None and not record.chunk_s and (failure.is_shed or failure.reason in _LOST)


def _retry_wait_s(record: Record) -> float:
    if record.retry_after_s is not None:
        return record.retry_after_s
    return RETRY_S if record.first_failure is not None and record.first_failure.is_shed else 0.0
