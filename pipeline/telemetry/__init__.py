"""What is seen of a running server: metrics, the journal of its latest requests and steps, evidence."""

from pipeline.telemetry.evidence import Evidence, Sample, Settings, StageSample
from pipeline.telemetry.journal import Journal, RequestRecord, StepRecord, SwapRecord
from pipeline.telemetry.kv_feed import KvFeed
from pipeline.telemetry.metrics.exposition import CONTENT_TYPE
from pipeline.telemetry.occupancy import Occupancy
from pipeline.telemetry.sampler import Sampler
from pipeline.telemetry.telemetry import Telemetry
from pipeline.telemetry.trace_sampler import RequestSpan, TraceSampler

__all__ = [
    "CONTENT_TYPE",
    "Evidence",
    "Journal",
    "KvFeed",
    "Occupancy",
    "RequestRecord",
    "RequestSpan",
    "Sample",
    "Sampler",
    "Settings",
    "StageSample",
    "StepRecord",
    "SwapRecord",
    "Telemetry",
    "TraceSampler",
]
