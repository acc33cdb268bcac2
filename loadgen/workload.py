"""What will be sent: a trace's rows, clamped and scaled in time. Knows no server and no text."""

import msgspec

from loadgen.errors import UsageError
from loadgen.traces.row import NS_PER_S, Content, Trace, TraceRow


class Limits(msgspec.Struct, frozen=True):
    """How a trace is cut to fit. None is no limit."""

    speed: float = 1.0
    """2 sends twice as fast: every gap is divided by it, so that bursts keep their shape."""
    rows: int | None = None
    max_input: int | None = None
    max_output: int | None = None


class Job(msgspec.Struct, frozen=True, gc=False):
    """One request to send."""

    index: int
    due_s: float
    """After the start of the run."""
    num_input: int | None
    """None: the text is given, and only the server knows how many tokens it is."""
    num_output: int
    content: Content | None = None
    """See TraceRow. A given text or chat is never clamped."""
    after: int | None = None
    """Index of the job whose answer this one follows; always an earlier one."""
    think_s: float | None = None
    """From the end of that answer to this request; None: when it is due, but never before that end."""
    adds_turn: bool = False
    """`content` is the new turn of a chat; see TraceRow."""


class Workload(msgspec.Struct, frozen=True):
    jobs: list[Job]
    num_clamped_input: int
    num_clamped_output: int

    @property
    def mean_gap_s(self) -> float | None:
        """Mean time between requests; None if there is only one."""
        return self.jobs[-1].due_s / (len(self.jobs) - 1) if len(self.jobs) > 1 else None


def plan(trace: Trace, limits: Limits) -> Workload:
    """The first `limits.rows` rows of `trace` as jobs; the first is due at once."""
    rows = trace.rows[: limits.rows]
    start_ns = rows[0].at_ns
    jobs = [_job(i, row, start_ns, limits) for i, row in enumerate(rows)]
    return Workload(
        jobs,
        sum(job.num_input != row.num_input for job, row in zip(jobs, rows, strict=True)),
        sum(job.num_output != row.num_output for job, row in zip(jobs, rows, strict=True)),
    )


def _job(index: int, row: TraceRow, start_ns: int, limits: Limits) -> Job:
    due_s = (row.at_ns - start_ns) / NS_PER_S / limits.speed
    return Job(
        index,
        due_s,
        None if row.num_input is None else _clamp(row.num_input, limits.max_input),
        _clamp(row.num_output, limits.max_output),
        row.content,
        row.after,
        row.think_s,
        row.adds_turn,
    )


def refuse_dependent(workload: Workload) -> None:
    """Raises UsageError if a job follows another's answer: sent by the clock it is another workload."""
    num_dependent = sum(job.after is not None for job in workload.jobs)
    if num_dependent:
        raise UsageError(
            f"{num_dependent} of {len(workload.jobs)} rows follow the answer to an earlier row (sessions), "
            "and replay sends by the clock alone; `loadgen describe` shows the sessions"
        )


def _clamp(count: int, limit: int | None) -> int:
    return count if limit is None else min(count, limit)
