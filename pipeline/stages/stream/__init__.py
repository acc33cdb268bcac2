"""Stream: TextBatch -> the clients' sinks."""

from pipeline.stages.stream.options import StreamOptions
from pipeline.stages.stream.stage import Stream

__all__ = ["Stream", "StreamOptions"]
