"""Stages and links: read from inboxes and services when scraped, so that keeping them costs nothing more."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pipeline.runtime.histogram import merged
from pipeline.runtime.inbox import Inbox, InboxStats
from pipeline.runtime.stage import Service
from pipeline.telemetry.metrics.exposition import NS, Family, Kind

Reading = tuple[str, Kind, str, Callable[[InboxStats], float]]

LINK_METRICS: tuple[Reading, ...] = (
    ("depth", "gauge", "Messages that wait on the link", lambda stats: stats.depth),
    ("bound", "gauge", "Messages that may wait on the link", lambda stats: stats.bound),
    ("peak_depth", "gauge", "Most messages that waited at once", lambda stats: stats.peak_depth),
    ("messages_total", "counter", "Messages put on the link", lambda stats: stats.sent),
    ("refused_total", "counter", "Offers refused: the link was full", lambda stats: stats.refused),
    ("blocked_total", "counter", "Sends that waited for room", lambda stats: stats.blocked),
    ("blocked_seconds_total", "counter", "Time of senders in waits", lambda stats: stats.blocked_ns * NS),
)
INBOX_METRICS: tuple[Reading, ...] = (
    ("depth", "gauge", "Data messages that wait for the stage", lambda stats: stats.depth),
    ("bound", "gauge", "Data messages that may wait for it", lambda stats: stats.bound),
    ("peak_depth", "gauge", "Most data messages that waited at once", lambda stats: stats.peak_depth),
    ("sent_total", "counter", "Messages on the data lane", lambda stats: stats.sent),
    ("posted_total", "counter", "Messages on the control lane", lambda stats: stats.posted),
    ("refused_total", "counter", "Offers refused: the inbox was full", lambda stats: stats.refused),
    ("wakeups_total", "counter", "Times a reader was woken", lambda stats: stats.wakeups),
    ("blocked_total", "counter", "Sends that waited for room", lambda stats: stats.blocked),
)


class WatchedStage(NamedTuple):
    """A stage as it is seen from outside; `services` has one entry per instance of a pool."""

    inbox: Inbox[object]
    services: Sequence[Service]
    sources: Sequence[str]
    """Whose data links lead here."""


class StageMetrics:
    """The stages in data order."""

    def __init__(self) -> None:
        self.stages: dict[str, WatchedStage] = {}
        self.swaps: Counter[tuple[str, str]] = Counter()
        """By stage, and how they ended."""

    def families(self) -> Iterable[Family]:
        stats = {name: stage.inbox.stats() for name, stage in self.stages.items()}
        yield from self._links(stats)
        yield from _inboxes(stats)
        yield from self._counts()
        yield from self._histograms()

    def _links(self, stats: dict[str, InboxStats]) -> Iterable[Family]:
        links = {
            f"{'+'.join(stage.sources)}->{name}": stats[name]
            for name, stage in self.stages.items()
            if stage.sources
        }
        for name, kind, text, read in LINK_METRICS:
            family = Family(f"stageline_link_{name}", kind, text)
            for link, values in links.items():
                family.add(read(values), link=link)
            yield family

    def _counts(self) -> Iterable[Family]:
        workers = Family("stageline_stage_workers", "gauge", "Instances that share the inbox")
        busy = Family("stageline_stage_busy_seconds_total", "counter", "Time inside handle()")
        batches = Family("stageline_stage_batches_total", "counter", "Calls of handle()")
        messages = Family("stageline_stage_messages_total", "counter", "Messages handled")
        errors = Family("stageline_stage_errors_total", "counter", "Requests answered with an error")
        for name, (_, services, _) in self.stages.items():
            workers.add(len(services), stage=name)
            busy.add(sum(each.busy_ns for each in services) * NS, stage=name)
            batches.add(sum(each.num_batches for each in services), stage=name)
            messages.add(sum(each.num_messages for each in services), stage=name)
            errors.add(sum(each.num_errors for each in services), stage=name)
        return (workers, busy, batches, messages, errors, self._swaps())

    def _swaps(self) -> Family:
        swaps = Family("stageline_stage_swaps_total", "counter", "Others that were to take the stage's place")
        for (stage, ending), count in sorted(self.swaps.items()):
            swaps.add(count, stage=stage, ending=ending)
        return swaps

    def _histograms(self) -> Iterable[Family]:
        wait = Family("stageline_stage_wait_seconds", "histogram", "Time of a message in the inbox")
        service = Family("stageline_stage_service_seconds", "histogram", "Time of one handle()")
        size = Family("stageline_stage_batch_messages", "histogram", "Messages in a batch")
        for name, (inbox, services, _) in self.stages.items():
            wait.add_histogram(inbox.data_waits, stage=name, lane="data")
            wait.add_histogram(inbox.control_waits, stage=name, lane="control")
            service.add_histogram(merged([each.times for each in services]), stage=name)
            size.add_histogram(merged([each.sizes for each in services]), scale=1, stage=name)
        return (wait, service, size)


def _inboxes(stats: dict[str, InboxStats]) -> Iterable[Family]:
    for name, kind, text, read in INBOX_METRICS:
        family = Family(f"stageline_inbox_{name}", kind, text)
        for stage, values in stats.items():
            family.add(read(values), stage=stage)
        yield family
