"""Live: reads the running pipeline for the page, and remembers what the page has been told."""

from collections import deque
from collections.abc import Callable
from time import perf_counter_ns

from pipeline.admin import snapshot
from pipeline.admin.blocks import BlockMap, block_map
from pipeline.admin.snapshot import Work
from pipeline.admin.views import Backlog, Snapshot
from pipeline.assemble import Pipeline
from pipeline.telemetry import Occupancy, Sample, StepRecord

TICK_S = 0.5
WINDOW_TICKS = 4
"""Rates are over so many ticks: one alone jumps too much to be read."""
HISTORY_S = 120
_GONE_NS = int(3e9)
"""A sample older than this is of an earlier visit."""


class Live:
    """Single loop. One reading of it is told to all pages, so the stretch between two is the same for all."""

    def __init__(self, pipeline: Pipeline, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._pipeline = pipeline
        self._telemetry = pipeline.telemetry
        self._journal = pipeline.telemetry.journal
        self._bounds = snapshot.Bounds(
            max_live=getattr(pipeline.stages["ingress"][0].options, "max_live_requests", 0),
            max_waiting=getattr(pipeline.stages["schedule"][0].options, "max_waiting", 0),
        )
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=WINDOW_TICKS)
        self._stepping_ns: deque[int] = deque(maxlen=WINDOW_TICKS)
        """At each sample, how long the device had computed at a step that had not ended."""
        self._work: deque[Work] = deque(maxlen=WINDOW_TICKS)
        """What ended from each sample to the next."""
        self._last_steps: list[StepRecord] = []
        """The latest step that was told, if any."""
        self._blocks: bytes | None = None
        self.is_ready = False
        """The door is open."""

    @property
    def state(self) -> str:
        if self._pipeline.inboxes[self._pipeline.graph.names[0]].is_closed:
            return "draining"
        return "ready" if self.is_ready else "starting"

    def backlog(self) -> Backlog:
        """For a page that has just opened; begins a stretch of readings if nobody has looked of late."""
        now_ns = self._clock()
        self._begin(now_ns)
        since_ns = now_ns - HISTORY_S * 1_000_000_000
        requests, steps = self._journal.requests(since_ns), self._journal.steps(since_ns)
        self._blocks = None
        return Backlog(
            snapshot.history(now_ns, int(TICK_S * 1e9), requests, steps),
            snapshot.step_columns(steps),
            snapshot.request_views(requests),
            snapshot.swap_views(self._journal.swaps()),
        )

    def tick(self) -> Snapshot:
        """What has changed since the tick before; rates are over the last WINDOW_TICKS."""
        sample = self._pipeline.sampler.sample()
        self._begin(sample.at_ns)
        before, last_ns, stepped_ns = self._samples[0], self._samples[-1].at_ns, self._stepping_ns[0]
        steps, requests = self._journal.steps(last_ns), self._journal.requests(last_ns)
        occupancy = self._telemetry.occupancy() if self._telemetry.occupancy else None
        told, self._last_steps = [*self._last_steps, *steps], steps[-1:] or self._last_steps
        self._stepping_ns.append(self._stepping(sample.at_ns, occupancy))
        self._samples.append(sample)
        self._work.append(snapshot.work_of(requests, steps))
        work = snapshot.together(self._work)
        device_ns = work.device_ns + self._stepping_ns[-1] - stepped_ns
        return Snapshot(
            state=self.state,
            totals=snapshot.totals(before, sample, work, occupancy),
            stages=snapshot.stage_views(before, sample, work, device_ns, occupancy, self._bounds),
            moment=snapshot.moment(sample.at_ns, requests, told),
            steps=snapshot.step_columns(steps),
            requests=snapshot.request_views(requests),
            swaps=snapshot.swap_views(self._journal.swaps(last_ns)),
            blocks=self._changed_blocks(occupancy),
        )

    def _begin(self, now_ns: int) -> None:
        """Take the first sample of a stretch of readings."""
        if self._samples and now_ns - self._samples[-1].at_ns > _GONE_NS:
            self._samples.clear()
            self._stepping_ns.clear()
            self._work.clear()
            self._last_steps.clear()
        if not self._samples:
            self._samples.append(self._pipeline.sampler.sample())
            self._stepping_ns.append(0)

    def _stepping(self, at_ns: int, occupancy: Occupancy | None) -> int:
        """It began when the step before ended, or after the latest sample that saw none."""
        if occupancy is None or not occupancy.is_stepping:
            return 0
        begun_ns = self._samples[-1].at_ns - self._stepping_ns[-1]
        return at_ns - max([begun_ns, *(step.end_ns for step in self._last_steps)])

    def _changed_blocks(self, occupancy: Occupancy | None) -> BlockMap | None:
        """The map, unless all pages have it."""
        if occupancy is None or occupancy.blocks == self._blocks:
            return None
        self._blocks = occupancy.blocks
        return block_map(occupancy.blocks)
