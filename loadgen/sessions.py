"""Which jobs may be sent, and when: at their due time, after the answer they follow, when a user is free.

Pure bookkeeping: every job is handed out exactly once, if `ended` is told of each that was.
"""

from collections import deque

from loadgen.workload import Job

Turn = tuple[float, int]
"""When a job is to be sent (its *intended* time), and its index."""


class Sessions:
    """A session is a job that follows nothing, and all that follow it, directly or not.

    Args:
        jobs: job i has index i.
        num_users: sessions that may be live at a time, whatever the clock says; None: no limit, by the clock.
    """

    def __init__(self, jobs: list[Job], num_users: int | None) -> None:
        self._jobs = jobs
        self._followers: dict[int, list[int]] = {}
        self._first: list[int] = []
        for job in jobs:
            self._first.append(job.index if job.after is None else self._first[job.after])
            if job.after is not None:
                self._followers.setdefault(job.after, []).append(job.index)
        self._num_left: dict[int, int] = {}
        for first in self._first:
            self._num_left[first] = self._num_left.get(first, 0) + 1
        self._num_users = num_users
        self._waiting = deque(self._num_left if num_users is not None else ())

    def begin(self) -> list[Turn]:
        """What can be sent without any answer."""
        if self._num_users is None:
            return [(self._jobs[first].due_s, first) for first in self._num_left]
        num_first = min(self._num_users, len(self._waiting))
        return [(0.0, self._waiting.popleft()) for _ in range(num_first)]

    def followers(self, index: int) -> list[int]:
        """The jobs that follow this one's answer directly."""
        return self._followers.get(index, [])

    def ended(self, index: int, at_s: float, *, is_answered: bool) -> list[Turn]:
        """What can be sent now that this job has ended.

        A follower comes no earlier than its due time, and its think time after the answer. Without an answer
        it comes at once: it cannot be sent, but must be counted.
        """
        turns = [
            (self._after(self._jobs[follower], at_s) if is_answered else at_s, follower)
            for follower in self.followers(index)
        ]
        first = self._first[index]
        self._num_left[first] -= 1
        if not self._num_left[first] and self._waiting:
            turns.append((at_s, self._waiting.popleft()))
        return turns

    def _after(self, job: Job, at_s: float) -> float:
        return max(job.due_s, at_s + (job.think_s or 0.0))
