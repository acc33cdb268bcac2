"""Sends every job when it is due, whatever the answers do."""

import asyncio

from loadgen.clients import Client
from loadgen.clock import RunClock
from loadgen.content import Contents
from loadgen.record import Record
from loadgen.workload import Job

GRACE_S = 5.0
"""After `stop`, how long requests may still end by themselves."""


class OpenLoop:
    """One run. `records` holds every request that was sent; read it at any time.

    Args:
        jobs: in order of `due_s`.
        clock: started by `run`.
        timeout_s: after it a request is cancelled and has failed.
    """

    def __init__(
        self, jobs: list[Job], client: Client, contents: Contents, clock: RunClock, timeout_s: float
    ) -> None:
        self.jobs = jobs
        self.records: list[Record] = []
        self.live: dict[int, Record] = {}
        self.num_failed = 0
        self.num_tokens_ended = 0
        """Output tokens of the requests that have ended."""
        self.is_stopped = False
        self._client = client
        self._contents = contents
        self._clock = clock
        self._timeout_s = timeout_s
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
        for job in self.jobs:
            while (wait_s := job.due_s - self._clock()) > 0:  # noqa: ASYNC110 - timers fire up to 1 ms early
                await asyncio.sleep(wait_s)
            task = group.create_task(self._one(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(self, job: Job) -> None:
        record = self.live[job.index] = Record(job.index, job.due_s, job.num_input, job.num_output)
        self.records.append(record)
        prompt = self._contents.prompt(job)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.generate(prompt, job.num_output, record)
        except TimeoutError:
            record.fail("timeout", f"no complete answer within {self._timeout_s:g} s")
        except asyncio.CancelledError:
            record.fail("interrupted", "the run was stopped before the answer ended")
            raise
        finally:
            record.closed_s = self._clock()
            del self.live[job.index]
            self.num_failed += record.failure is not None
            self.num_tokens_ended += record.num_output
