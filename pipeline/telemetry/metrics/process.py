"""The process: CPU by thread, memory, the loop's lag, garbage collection."""

from collections.abc import Iterable

from pipeline.telemetry.evidence import Sample
from pipeline.telemetry.metrics.exposition import NS, Family
from pipeline.telemetry.vitals import Vitals


def families(vitals: Vitals, now: Sample, last_minute: Iterable[Sample]) -> Iterable[Family]:
    """`last_minute` and `now` give the longest lag and pause; the histograms have all since start."""
    samples = (*last_minute, now)
    cpu = Family("stageline_process_cpu_seconds_total", "counter", "CPU time of the process")
    yield cpu.add(now.process_cpu_ns * NS)
    threads = Family("stageline_thread_cpu_seconds_total", "counter", "CPU time of our threads, by name")
    for name, spent_ns in now.thread_cpu_ns.items():
        threads.add(spent_ns * NS, thread=name)
    yield threads
    yield Family("stageline_process_resident_bytes", "gauge", "Memory that is resident").add(now.rss_bytes)
    lag = Family("stageline_loop_lag_seconds", "histogram", "How late the loop comes to a timer")
    yield lag.add_histogram(vitals.loop.lags)
    longest = Family("stageline_loop_lag_max_seconds", "gauge", "The longest lag of the last minute")
    yield longest.add(max(sample.loop_lag_ns for sample in samples) * NS)
    pauses = Family("stageline_gc_pause_seconds", "histogram", "Stops of all threads by the collector")
    for generation, histogram in enumerate(vitals.gc.pauses):
        pauses.add_histogram(histogram, generation=str(generation))
    yield pauses
    longest = Family("stageline_gc_pause_max_seconds", "gauge", "The longest stop of the last minute")
    yield longest.add(max(sample.gc_longest_ns for sample in samples) * NS)
