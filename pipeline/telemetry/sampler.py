"""The sampler: the state of the server once a second, ten minutes back, and the evidence made of it.

`assemble.Pipeline.sampler` is one; it runs with the pipeline (the supervisor starts and stops it), whoever
serves. For readers on the loop:

    pipeline.sampler.sample()           a Sample of now, at the cost of about 50 us
    pipeline.sampler.samples()          the ring, oldest first, a second apart
    pipeline.sampler.evidence(30.0)     Evidence of the last 30 s: settings, samples, requests, steps
    pipeline.sampler.vitals             loop lag and garbage collection as histograms

Counters in a Sample run since start; two samples give the rates between them (`pipeline.telemetry.evidence`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter_ns

from pipeline.messages import DeviceReady
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import Service
from pipeline.telemetry.evidence import Evidence, Sample, Settings, StageSample
from pipeline.telemetry.metrics import process
from pipeline.telemetry.metrics.exposition import Family
from pipeline.telemetry.ring import Ring
from pipeline.telemetry.telemetry import Telemetry
from pipeline.telemetry.vitals import Vitals

PERIOD_S = 1.0
NUM_SAMPLES = 600
_LATELY = 10
"""Samples over which utilisation is shown."""
_MINUTE = 60


class Sampler:
    """On the loop. A companion of the supervisor: start() once all stages run, stop() at the end.

    Args:
        settings: those of the pipeline, given what the device turned out to hold.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        settings: Callable[[DeviceReady], Settings],
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self.vitals = Vitals(clock)
        self._telemetry = telemetry
        self._settings = settings
        self._clock = clock
        self._ring = Ring(Sample, NUM_SAMPLES)
        self._timer: asyncio.TimerHandle | None = None
        telemetry.show(self._families)

    async def start(self) -> None:
        """Take the first sample, and go on."""
        self.vitals.start()
        self._tick()

    async def stop(self) -> None:
        """Idempotent. What was sampled stays."""
        self.vitals.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def samples(self) -> list[Sample]:
        """Those of the ring, oldest first."""
        return self._ring.latest()

    def sample(self) -> Sample:
        """The state now. Its `loop_lag_ns` and `gc_longest_ns` reach back to the latest of the ring."""
        telemetry, vitals, now_ns = self._telemetry, self.vitals, self._clock()
        worker_ns = telemetry.worker.cpu_ns()
        threads_ns = vitals.thread_cpu_ns() | ({"device": worker_ns} if telemetry.worker.pid else {})
        return Sample(
            at_ns=now_ns,
            stages=tuple(
                stage_sample(name, inbox, services, now_ns)
                for name, (inbox, services, _) in telemetry.stages.items()
            ),
            num_live=telemetry.num_live,
            num_refused=telemetry.num_refused,
            num_received=telemetry.num_received,
            thread_cpu_ns=threads_ns,
            process_cpu_ns=vitals.process_cpu_ns() + worker_ns,
            rss_bytes=vitals.rss_bytes() + telemetry.worker.rss_bytes(),
            loop_lag_ns=vitals.loop.longest_ns,
            gc_pauses=vitals.gc.count,
            gc_pause_ns=vitals.gc.total_ns,
            gc_longest_ns=vitals.gc.longest_ns,
            refused=telemetry.refused_by_code,
            run_delay_ns=vitals.run_delay_ns(),
        )

    def evidence(self, last_s: float) -> Evidence:
        """The last `last_s` seconds, and up to one more: the window begins at a sample of the ring, and ends
        at one of now. It is shorter where the ring does not reach back so far.

        Raises RuntimeError before the pipeline is ready.
        """
        device = self._telemetry.device
        if device is None or not len(self._ring):
            raise RuntimeError("there is no evidence before the pipeline is ready")
        last = self.sample()
        samples = self._window(last.at_ns - int(last_s * 1e9))
        begin_ns = samples[0].at_ns
        journal = self._telemetry.journal
        return Evidence(
            begin_ns=begin_ns,
            end_ns=last.at_ns,
            settings=self._settings(device),
            samples=(*samples, last),
            requests=tuple(journal.requests(begin_ns)),
            steps=tuple(journal.steps(begin_ns)),
        )

    def _families(self) -> Iterable[Family]:
        now, ring = self.sample(), self._ring.latest(_MINUTE)
        before = ring[-min(len(ring), _LATELY)] if ring else now
        utilisation = Family("stageline_stage_utilization_ratio", "gauge", "Busy share of the last 10 s")
        for name, share in busy_shares(before, now).items():
            utilisation.add(share, stage=name)
        yield utilisation
        yield from process.families(self.vitals, now, ring)

    def _window(self, since_ns: int) -> list[Sample]:
        """Those at or after `since_ns`, and the one before."""
        inside = self._ring.since(since_ns, lambda sample: sample.at_ns)
        before = self._ring.latest(len(inside) + 1)
        return before if not inside or inside[0].at_ns > since_ns else inside

    def _tick(self) -> None:
        self._ring.append(self.sample())
        self.vitals.loop.longest_ns = self.vitals.gc.longest_ns = 0
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._tick)


def stage_sample(name: str, inbox: Inbox[object], services: Sequence[Service], now_ns: int) -> StageSample:
    stats = inbox.stats()
    return StageSample(
        name=name,
        workers=len(services),
        depth=stats.depth,
        bound=stats.bound,
        peak_depth=stats.peak_depth,
        sent=stats.sent,
        posted=stats.posted,
        refused=stats.refused,
        blocked=stats.blocked,
        blocked_ns=stats.blocked_ns,
        num_batches=sum(each.num_batches for each in services),
        num_messages=sum(each.num_messages for each in services),
        busy_ns=sum(each.busy_until(now_ns) for each in services),
        num_waited=inbox.data_waits.count,
        waited_ns=inbox.data_waits.total,
    )


def busy_shares(before: Sample, after: Sample) -> Mapping[str, float]:
    """By stage, the share of the time between two samples that its workers spent in handle(): 0 to 1."""
    elapsed_ns = after.at_ns - before.at_ns
    return {
        new.name: (new.busy_ns - old.busy_ns) / (elapsed_ns * new.workers) if elapsed_ns else 0.0
        for old, new in zip(before.stages, after.stages, strict=True)
    }
