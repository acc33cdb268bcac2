"""Seeing: what it costs a server to see itself, in turns on and off (bench.turns)."""

from typing import Any

from pipeline.assemble import Pipeline
from pipeline.bench.turns import Mode
from pipeline.runtime.histogram import Histogram


def seeing(pipeline: Pipeline) -> list[Mode]:
    """With and without trace, journal (with all that listens to it) and histograms.

    For a process of the bench alone: histograms are blinded as a class. The sampler goes on: 30 us a second.
    """
    journal: Any = pipeline.telemetry.journal
    histogram: Any = Histogram
    request, step, add = journal.request, journal.step, Histogram.add

    def see(does: bool) -> None:
        pipeline.trace.enabled = does
        journal.request, journal.step = (request, step) if does else (_ignore, _ignore)
        histogram.add = add if does else _ignore

    return [
        Mode("with trace, journal and metrics", lambda: see(True)),
        Mode("without", lambda: see(False)),
    ]


def _ignore(*_: object) -> None:
    return None
