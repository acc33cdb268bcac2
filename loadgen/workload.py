"""What will be sent: a trace's rows, clamped, and each with its time. Knows no server and no text."""

from itertools import pairwise
from statistics import fmean, pstdev

import msgspec

from loadgen.ties import num_tied, untied
from loadgen.timing import Closed, Ramp, Scale, Timing, drawn_s
from loadgen.traces.row import NS_PER_S, Content, Trace, TraceRow


class Limits(msgspec.Struct, frozen=True):
    """How a trace is cut to fit. None is no limit."""

    rows: int | None = None
    max_input: int | None = None
    max_output: int | None = None


class Pacing(msgspec.Struct, frozen=True):
    """When rows are due: pure in the recorded times and `seed`."""

    timing: Timing = Scale()
    ties: str = "burst"
    """A name of `ties.POLICIES`; of recorded times only."""
    ramp: Ramp | None = None
    seed: int = 0


class Job(msgspec.Struct, frozen=True, gc=False):
    """One request to send."""

    index: int
    """The row's, and the place in `Workload.jobs`: a prompt depends on it, and not on the timing."""
    due_s: float
    """After the start of the run; one that follows another is never sent before that one's answer ended."""
    num_input: int | None
    """None: the text is given, and only the server knows how many tokens it is."""
    num_output: int
    content: Content | None = None
    """See TraceRow. A given text or chat is never clamped."""
    after: int | None = None
    """Index of the job whose answer this one follows; always an earlier one."""
    think_s: float | None = None
    """From the end of that answer to this request, at least; None: no such time is recorded."""
    adds_turn: bool = False
    """`content` is the new turn of a chat; see TraceRow."""


class Arrivals(msgspec.Struct, frozen=True):
    """The planned times of the rows that start by the clock, measured."""

    timing: str
    ties: str
    num_by_clock: int
    """Rows that follow no answer."""
    num_following: int
    num_tied: int
    """Of the rows by the clock: those that share their recorded time; 0 where times are drawn."""
    span_s: float
    """First to last."""
    rate_per_s: float | None
    gap_cv: float | None
    """Population standard deviation / mean of the gaps."""

    def __str__(self) -> str:
        text = f"timing {self.timing}: {self.num_by_clock} rows that follow no other"
        if self.rate_per_s is not None and self.gap_cv is not None:
            text += f" over {self.span_s:.1f} s, {self.rate_per_s:.3g}/s, gap CV {self.gap_cv:.3g}"
        if self.num_tied:
            text += f"; {self.num_tied} share their recorded time (--ties {self.ties})"
        return text + (f"; {self.num_following} follow answers" if self.num_following else "")


class Workload(msgspec.Struct, frozen=True):
    jobs: list[Job]
    """In order of the trace."""
    num_clamped_input: int
    num_clamped_output: int
    arrivals: Arrivals
    num_users: int | None = None
    """Not None: due times mean nothing, and so many sessions are live at a time."""

    @property
    def span_s(self) -> float:
        """The last due time."""
        return max(job.due_s for job in self.jobs)

    @property
    def mean_gap_s(self) -> float | None:
        """Mean time between due times; None if there is only one, or no clock."""
        if len(self.jobs) < 2 or self.num_users is not None:
            return None
        return self.span_s / (len(self.jobs) - 1)


def plan(trace: Trace, limits: Limits, pacing: Pacing | None = None) -> Workload:
    """The first `limits.rows` rows of `trace` as jobs; the first is due at once (but for jittered ties)."""
    pacing = pacing or Pacing()
    rows = trace.rows[: limits.rows]
    recorded_s = [(row.at_ns - rows[0].at_ns) / NS_PER_S for row in rows]
    by_clock = [i for i, row in enumerate(rows) if row.after is None]
    starts_s = _starts_s([recorded_s[i] for i in by_clock], pacing)
    due_s = _due_s(rows, recorded_s, dict(zip(by_clock, starts_s, strict=True)), pacing.timing)
    jobs = [_job(i, row, due_s[i], limits) for i, row in enumerate(rows)]
    return Workload(
        jobs,
        sum(job.num_input != row.num_input for job, row in zip(jobs, rows, strict=True)),
        sum(job.num_output != row.num_output for job, row in zip(jobs, rows, strict=True)),
        _arrivals([recorded_s[i] for i in by_clock], starts_s, len(rows), pacing),
        pacing.timing.num_users if isinstance(pacing.timing, Closed) else None,
    )


def _starts_s(recorded_s: list[float], pacing: Pacing) -> list[float]:
    """Due times, in order, of the rows that follow no answer."""
    timing = pacing.timing
    if isinstance(timing, Closed):
        return recorded_s if timing.num_users is None else [0.0] * len(recorded_s)
    if isinstance(timing, Scale):
        return [at / timing.speed for at in untied(recorded_s, pacing.ties, pacing.seed)]
    return drawn_s(timing, len(recorded_s), pacing.ramp, pacing.seed)


def _due_s(
    rows: list[TraceRow], recorded_s: list[float], starts_s: dict[int, float], timing: Timing
) -> list[float]:
    """Of every row. One that follows another keeps its recorded distance from it (scaled where times are)."""
    speed = timing.speed if isinstance(timing, Scale) else 1.0
    due_s: list[float] = []
    for i, row in enumerate(rows):
        if row.after is None:
            due_s.append(starts_s[i])
        elif isinstance(timing, Closed):
            due_s.append(due_s[row.after])
        else:
            due_s.append(due_s[row.after] + (recorded_s[i] - recorded_s[row.after]) / speed)
    return due_s


def _arrivals(recorded_s: list[float], starts_s: list[float], num_rows: int, pacing: Pacing) -> Arrivals:
    span_s = starts_s[-1] - starts_s[0]
    gaps = [later - sooner for sooner, later in pairwise(starts_s)]
    return Arrivals(
        timing=f"{pacing.timing} ramp {pacing.ramp}" if pacing.ramp else str(pacing.timing),
        ties=pacing.ties,
        num_by_clock=len(starts_s),
        num_following=num_rows - len(starts_s),
        num_tied=num_tied(recorded_s) if isinstance(pacing.timing, Scale) else 0,
        span_s=span_s,
        rate_per_s=len(gaps) / span_s if span_s else None,
        gap_cv=round(pstdev(gaps) / fmean(gaps), 9) if span_s else None,
    )


def _job(index: int, row: TraceRow, due_s: float, limits: Limits) -> Job:
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


def _clamp(count: int, limit: int | None) -> int:
    return count if limit is None else min(count, limit)
