"""One run at one rate: a workload of that rate is replayed, watched, and judged."""

import asyncio
from itertools import accumulate

import msgspec
from rich.console import Console

from loadgen.capacity.votes import Vote, lost, values_ms
from loadgen.clock import TICK_S, RunClock
from loadgen.interrupts import Interrupted
from loadgen.openloop import OpenLoop
from loadgen.replay import Options, Run, measure
from loadgen.slo import Slo
from loadgen.summary import summarise
from loadgen.timing import Renewal
from loadgen.workload import Pacing

_LOOK_S = 0.25
_QUIET = Console(quiet=True)


class Load(msgspec.Struct, frozen=True):
    """How a rate becomes a run."""

    options: Options
    """Of the replay; timing, rows and seed are set for each run."""
    slo: Slo
    percentile: float
    duration_s: float
    num_rows: int | None
    """Not None: so many requests whatever the rate, instead of `duration_s`."""
    most_rows: int
    """As many as the trace has."""
    gap_cv: float

    def rows(self, rate: float) -> int:
        """Requests of a run at `rate`; two at least, for one has no rate."""
        wanted = round(rate * self.duration_s) if self.num_rows is None else self.num_rows
        return min(max(2, wanted), self.most_rows)

    def options_at(self, rate: float, seed: int) -> Options:
        limits = msgspec.structs.replace(self.options.limits, rows=self.rows(rate))
        pacing = Pacing(Renewal(rate, self.gap_cv), seed=seed)
        return msgspec.structs.replace(self.options, limits=limits, pacing=pacing, seed=seed)


async def vote(load: Load, rate: float, seed: int) -> Vote:
    """Measures `rate` once.

    Raises:
        Interrupted: Ctrl-C.
        LoadgenError: the server cannot be used.
    """
    watcher = _Watcher(load, load.rows(rate))
    run = await measure(load.options_at(rate, seed), _QUIET, watcher.watch)
    if run.is_stopped and watcher.reason is None:
        raise Interrupted
    return Vote(
        seed=seed,
        broken=_broken(load, run) if watcher.reason is None else [watcher.reason],
        client_bound=_client_bound(run, watcher.cut_s),
        values_ms=values_ms(load.slo, load.percentile, run.records),
        num_requests=len(run.records),
        rate_per_s=run.workload.arrivals.rate_per_s,
        wall_s=run.summary.wall_s,
        is_cut=watcher.reason is not None,
    )


def _broken(load: Load, run: Run) -> list[str]:
    """Failures count even where no limit would see them: of gaps, for instance, a failed request has none."""
    too_many = lost(load.slo, load.percentile, run.records, len(run.workload.jobs), run.summary.wall_s)
    return load.slo.broken(run.records) or ([] if too_many is None else [too_many])


def _client_bound(run: Run, cut_s: float | None) -> list[str]:
    """Of what was before the cut: cancelling all live requests at once makes the loop lag."""
    if cut_s is None:
        return run.summary.client_bound
    ends_s = accumulate(TICK_S + lag_s for lag_s in run.lags_s)
    lags_s = [lag_s for lag_s, end_s in zip(run.lags_s, ends_s, strict=True) if end_s < cut_s]
    planned = len(run.workload.jobs)
    return summarise(run.records, planned, run.workload.mean_gap_s, lags_s, None).client_bound


class _Watcher:
    """Ends a run that is lost, so that no time is spent on a queue that grows without end."""

    def __init__(self, load: Load, num_planned: int) -> None:
        self.reason: str | None = None
        self.cut_s: float | None = None
        self._load = load
        self._num_planned = num_planned

    async def watch(self, run: OpenLoop, clock: RunClock) -> None:
        """Runs until cancelled, or until the run is ended."""
        while self.reason is None:
            await asyncio.sleep(_LOOK_S)
            load = self._load
            self.reason = lost(load.slo, load.percentile, run.records, self._num_planned, clock())
        self.cut_s = clock()
        run.stop()
        run.stop()  # the second does not wait for the answers
