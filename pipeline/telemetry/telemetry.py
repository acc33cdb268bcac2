"""Telemetry: what stages are given to be seen by. The journal, and everything that /metrics shows.

Nothing here runs per token: a request is observed once, when it ends, a step once, when it is applied;
inboxes, stages and the scheduler are asked for their state by the scrape. Names and units: docs/metrics.md.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from pipeline.messages import DeviceReady
from pipeline.runtime.histogram import Histogram
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import Service
from pipeline.telemetry.device_worker import DeviceWorkerState
from pipeline.telemetry.journal import Journal, SwapRecord
from pipeline.telemetry.kv_feed import KvFeed
from pipeline.telemetry.metrics.exposition import Family, Kind, page
from pipeline.telemetry.metrics.gen_ai import GenAiNames
from pipeline.telemetry.metrics.gpu import GpuMetrics
from pipeline.telemetry.metrics.requests import RequestMetrics
from pipeline.telemetry.metrics.stages import StageMetrics, WatchedStage
from pipeline.telemetry.metrics.steps import StepMetrics
from pipeline.telemetry.metrics.vllm import VllmNames
from pipeline.telemetry.occupancy import Occupancy
from pipeline.telemetry.trace_sampler import TraceSampler


class Telemetry:
    """One per server. Single loop.

    Args:
        model: its name, a label of the metrics that others named.
        vllm_names: show the figures under vLLM's names too.
        gen_ai_names: and under OpenTelemetry's.
    """

    def __init__(self, model: str = "", *, vllm_names: bool = True, gen_ai_names: bool = True) -> None:
        self.journal = Journal()
        self.trace_sampler = TraceSampler()
        self.occupancy: Callable[[], Occupancy] | None = None
        """What the scheduler holds now; None before it is open."""
        self.kv_events: KvFeed | None = None
        """Of the prefix cache; None where none are told."""
        self.worker = DeviceWorkerState()
        self._requests = RequestMetrics(self.journal)
        self._steps = StepMetrics(self.journal)
        self._stages = StageMetrics()
        self._gpu = GpuMetrics()
        self._gauges: list[Callable[[], Mapping[str, float]]] = [self.worker.gauges]
        self._shown: list[Callable[[], Iterable[Family]]] = []
        self._vllm = VllmNames(model, self.journal, self._requests, self._steps) if vllm_names else None
        if gen_ai_names:
            self.show(GenAiNames(model, self.journal).families)

    # What stages say ------------------------------------------------------------------------

    def received(self) -> None:
        """Count a request that was taken in."""
        self._requests.num_received += 1

    def refused(self, code: str) -> None:
        """Count a request that was not taken in (queue full, draining)."""
        self._requests.refused[code] += 1

    @property
    def itl(self) -> Histogram:
        """For the streamer: the gap since a client's last write, divided by its tokens, weighed by them."""
        return self._requests.itl

    def opened(self, device: DeviceReady) -> None:
        """The device is open, and holds so much."""
        self._steps.device = device

    def watch(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Show values: `read` is called by every scrape and gives {name without prefix: value}.

        A name that ends in _total is a counter, any other a gauge.
        """
        self._gauges.append(read)

    # What the composition root says ---------------------------------------------------------

    def watch_stage(
        self, name: str, inbox: Inbox[object], services: Sequence[Service], sources: Sequence[str] = ()
    ) -> None:
        """Show a stage's inbox and service time; `services` has one entry per pool instance. `sources` are
        the stages whose data links lead to it.
        """
        self._stages.stages[name] = WatchedStage(inbox, services, sources)

    def swapped(self, record: SwapRecord) -> None:
        """Another one was to take a stage's place."""
        self._stages.swaps[record.stage, record.ending] += 1
        self.journal.swap(record)

    def show(self, families: Callable[[], Iterable[Family]]) -> None:
        """Show more metrics: called by every scrape."""
        self._shown.append(families)

    # What readers ask -----------------------------------------------------------------------

    @property
    def device(self) -> DeviceReady | None:
        """What the device holds; None before it is open."""
        return self._steps.device

    @property
    def num_live(self) -> int:
        """Requests taken in and not yet ended."""
        return self._requests.num_live

    @property
    def num_received(self) -> int:
        """Requests taken in since start."""
        return self._requests.num_received

    @property
    def num_refused(self) -> int:
        """At the door, since start."""
        return self._requests.refused.total()

    @property
    def refused_by_code(self) -> dict[str, int]:
        """num_refused, divided."""
        return dict(self._requests.refused)

    @property
    def stages(self) -> Mapping[str, WatchedStage]:
        """What watch_stage was told, in its order."""
        return self._stages.stages

    def render(self) -> bytes:
        """The text exposition of everything (metrics.exposition)."""
        return page(self._families())

    def _families(self) -> Iterable[Family]:
        gauges: defaultdict[str, float] = defaultdict(float)
        for read in self._gauges:  # two stages of a class name the same
            for name, value in read().items():
                gauges[name] += value
        yield from self._requests.families()
        yield from self._stages.families()
        yield from self._steps.families(gauges.get("kv_blocks_used", 0))
        for name, value in gauges.items():
            kind: Kind = "counter" if name.endswith("_total") else "gauge"
            yield Family(f"stageline_{name}", kind, "See docs/metrics.md").add(value)
        if self.device is not None and self.device.device == "cuda":
            yield from self._gpu.families()
        for families in self._shown:
            yield from families()
        if self._vllm is not None:
            yield from self._vllm.families(gauges)
