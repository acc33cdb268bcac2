"""Telemetry: the journal, and what /metrics shows: requests when they end, gauges when scraped.

Nothing here runs per token: a request is observed once, when it ends, and inboxes, stages and the scheduler
are asked for their state by the scrape. Names and units: docs/metrics.md.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.messages import SEGMENTS, Completion, DeviceReady
from pipeline.runtime.inbox import Inbox, InboxStats
from pipeline.runtime.stage import Service
from pipeline.telemetry.journal import Journal
from pipeline.telemetry.occupancy import Occupancy
from pipeline.telemetry.trace_sampler import TraceSampler

NS = 1e-9
BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
"""From 100 us, so that a stage that costs nothing shows as such and a queue of milliseconds does not hide."""


class Telemetry:
    """One per server. Not thread-safe beyond what prometheus_client is; used on the loop."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.sampler = TraceSampler()
        self.device: DeviceReady | None = None
        """What the device holds; None before it is open."""
        self.num_live = 0
        """Requests taken in and not yet ended."""
        self.num_refused = 0
        self.occupancy: Callable[[], Occupancy] | None = None
        """What the scheduler holds now; None before the device is open, and where a stage in its place has none."""
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests ended, by how", "finish_reason")
        self._rejected = self._counter("rejected", "Requests answered with an error before a row", "code")
        self._refused = self._counter("refused", "Requests refused at the door", "code")
        self._tokens = self._counter("tokens", "Tokens of ended requests", "kind")
        self._ttft = self._histogram("ttft_seconds", "Arrival to the first token written")
        self._e2e = self._histogram("e2e_seconds", "Arrival to the last byte written")
        self._tpot = self._histogram("tpot_seconds", "(e2e - ttft) / (output tokens - 1), per request")
        segment = self._histogram("segment_seconds", "Time of a request in one segment", "segment")
        self._segments = [segment.labels(name) for name in SEGMENTS]
        self._state = _State()
        self._registry.register(self._state)

    def finished(self, completion: Completion) -> None:
        """Observe one request that had a terminal row."""
        timings = completion.timings
        self.num_live -= 1
        self._requests.labels(completion.finish_reason.name.lower()).inc()
        self._tokens.labels("prompt").inc(completion.num_prompt_tokens)
        self._tokens.labels("output").inc(completion.num_output_tokens)
        self._e2e.observe(timings.e2e_ns * NS)
        for segment, value_ns in zip(self._segments, timings.segments_ns, strict=True):
            segment.observe(value_ns * NS)
        if timings.ttft_ns is None:
            return
        self._ttft.observe(timings.ttft_ns * NS)
        if completion.num_output_tokens > 1:
            gap_ns = (timings.e2e_ns - timings.ttft_ns) / (completion.num_output_tokens - 1)
            self._tpot.observe(gap_ns * NS)

    def rejected(self, status: int, code: str) -> None:
        """Count a request that was taken in, then answered with an error and no row."""
        self.num_live -= 1
        self._rejected.labels(code or str(status)).inc()

    def received(self) -> None:
        """Count a request that was taken in."""
        self.num_live += 1

    def refused(self, code: str) -> None:
        """Count a request that was not taken in (queue full, draining)."""
        self.num_refused += 1
        self._refused.labels(code).inc()

    @property
    def stages(self) -> Mapping[str, tuple[Inbox[object], tuple[Service, ...]]]:
        """What watch_stage was told, in its order."""
        return self._state.stages

    def watch_stage(self, name: str, inbox: Inbox[object], services: Iterable[Service]) -> None:
        """Show a stage's inbox and service time; `services` has one entry per pool instance."""
        self._state.stages[name] = (inbox, tuple(services))

    def watch(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Show values: `read` is called by every scrape and gives {name without prefix: value}.

        A name that ends in _total is a counter, any other a gauge.
        """
        self._state.gauges.append(read)

    def render(self) -> bytes:
        """The Prometheus text exposition of everything, format 0.0.4."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"stageline_{name}", text, [label], registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"stageline_{name}", text, labels, buckets=BUCKETS_S, registry=self._registry)


class _State(Collector):
    """Reads inboxes, stages and gauges at scrape time, so that keeping them costs nothing."""

    def __init__(self) -> None:
        self.stages: dict[str, tuple[Inbox[object], tuple[Service, ...]]] = {}
        self.gauges: list[Callable[[], Mapping[str, float]]] = []

    def collect(self) -> Iterable[Metric]:
        yield from self._inboxes()
        yield from self._services()
        for read in self.gauges:
            for name, value in read().items():
                family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                yield family(f"stageline_{name}", f"See docs/metrics.md: {name}", value)

    def _inboxes(self) -> Iterable[Metric]:
        stats = {name: inbox.stats() for name, (inbox, _) in self.stages.items()}
        for field in InboxStats.__struct_fields__:
            is_gauge = field in ("depth", "bound", "peak_depth")
            family = GaugeMetricFamily if is_gauge else CounterMetricFamily
            metric = family(f"stageline_inbox_{field}", f"Inbox: {field}", labels=["stage"])
            for name, values in stats.items():
                metric.add_metric([name], getattr(values, field))
            yield metric

    def _services(self) -> Iterable[Metric]:
        busy = CounterMetricFamily("stageline_stage_busy_seconds", "Time inside handle()", labels=["stage"])
        batches = CounterMetricFamily("stageline_stage_batches", "Calls of handle()", labels=["stage"])
        messages = CounterMetricFamily("stageline_stage_messages", "Messages handled", labels=["stage"])
        for name, (_, services) in self.stages.items():
            busy.add_metric([name], sum(s.busy_ns for s in services) * NS)
            batches.add_metric([name], sum(s.num_batches for s in services))
            messages.add_metric([name], sum(s.num_messages for s in services))
        yield from (busy, batches, messages)
