"""Timeline: where a request's time on the step cycle went, without any accounting per token.

All sequences on the device share its steps, so one running total per segment serves them all: a sequence
remembers the totals when it joins and the difference when it leaves is its share. Only the first step of a
sequence is split for it alone. A cursor moves along the real times of each step (planned, device begin, ...)
and gives the stretch before each to one segment; where steps overlap, a time behind the cursor gives
nothing. So the segments of a request always add up to the time that passed, exactly.
"""

from collections.abc import Sequence

from pipeline.messages import SEGMENTS, STEP_SEGMENTS

STEP_NAMES = SEGMENTS[STEP_SEGMENTS]
SCHEDULE_WAIT = STEP_NAMES.index("schedule.wait")
SCHEDULE_SERVICE = STEP_NAMES.index("schedule.service")

STEP_PATH = tuple(
    STEP_NAMES.index(name)
    for name in (
        "schedule.wait",  # until planned
        "execute.wait",  # until the device began
        "execute.service",  # until the device ended
        "sample.wait",  # until the sampler took it
        "sample.service",  # until the sampler sent it
        "schedule.wait",  # until the scheduler took it
    )
)
"""The segment that ends at each of a step's times."""


def split(cursor_ns: int, times_ns: Sequence[int], totals_ns: list[int]) -> int:
    """Add the stretches between `cursor_ns` and each of a step's six times to `totals_ns`; the new cursor."""
    for segment, time_ns in zip(STEP_PATH, times_ns, strict=True):
        if time_ns > cursor_ns:
            totals_ns[segment] += time_ns - cursor_ns
            cursor_ns = time_ns
    return cursor_ns


class Timeline:
    """The shared totals. `elapsed_ns` covers the time up to `cursor_ns`."""

    def __init__(self) -> None:
        self.elapsed_ns = [0] * len(STEP_NAMES)
        self.cursor_ns = 0

    def step(self, times_ns: Sequence[int]) -> None:
        """Account one applied step by its six times (SampledBatch.times_ns and when it was taken)."""
        if not self.cursor_ns:
            self.cursor_ns = times_ns[0]
        self.cursor_ns = split(self.cursor_ns, times_ns, self.elapsed_ns)

    def serve(self, now_ns: int) -> None:
        """Account the scheduler's own work after a step."""
        self.elapsed_ns[SCHEDULE_SERVICE] += now_ns - self.cursor_ns
        self.cursor_ns = now_ns


class Clocked:
    """One sequence's side of it: the time it spent alone, and from when on it shares the steps."""

    __slots__ = ("_base_ns", "_mark_ns", "_spent_ns")

    def __init__(self, door_ns: Sequence[int], mark_ns: int) -> None:
        """`door_ns` are the segments before the scheduler; the wait in the queue begins at `mark_ns`."""
        self._spent_ns = [*door_ns, *[0] * (len(SEGMENTS) - len(door_ns))]
        self._mark_ns = mark_ns
        self._base_ns: list[int] | None = None

    def join(self, timeline: Timeline, times_ns: Sequence[int]) -> None:
        """The sequence's first step (since it waited) has been applied to the timeline."""
        own = [0] * len(STEP_NAMES)
        split(self._mark_ns, times_ns, own)
        base = list(self._spent_ns)
        for index, value in enumerate(own):
            base[STEP_SEGMENTS.start + index] += value - timeline.elapsed_ns[index]
        self._base_ns = base

    def leave(self, timeline: Timeline) -> None:
        """Preempted: from the timeline's cursor on, the sequence waits again."""
        if self._base_ns is None:
            return
        for index, value in enumerate(timeline.elapsed_ns):
            self._base_ns[STEP_SEGMENTS.start + index] += value
        self._spent_ns, self._base_ns, self._mark_ns = self._base_ns, None, timeline.cursor_ns

    def base_ns(self, timeline: Timeline, now_ns: int) -> tuple[int, ...]:
        """What makes base + timeline.elapsed_ns the segments up to `now_ns`; see SequenceTimes."""
        base = list(self._base_ns or self._spent_ns)
        since_ns = timeline.cursor_ns
        if self._base_ns is None:
            since_ns = self._mark_ns
            for index, value in enumerate(timeline.elapsed_ns):
                base[STEP_SEGMENTS.start + index] -= value
        base[STEP_SEGMENTS.start + SCHEDULE_WAIT] += now_ns - since_ns
        return tuple(base)
