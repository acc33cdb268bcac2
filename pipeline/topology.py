"""THE graph: nodes, links, bounds and lanes - data, no code. ARCHITECTURE.md draws it.

A link carries one message type from one stage to another. `data` links are bounded by the inbox of the
stage they lead to; `control` links never wait (at most a few messages per live request or per credit).
The only cycle, schedule -> execute -> sample -> schedule, is closed by credits: the scheduler has at most
`credits` plans out, so no inbox on the cycle can be full.
"""

from enum import StrEnum
from typing import NamedTuple

from pipeline.messages import (
    Cancel,
    DeviceReady,
    DiskMoved,
    DiskMoves,
    GenerateRequest,
    Open,
    Pause,
    Rejected,
    Resume,
    SampledBatch,
    StepHandle,
    StepPlan,
    TextBatch,
    TokenBatch,
    TokenizedRequest,
)


class Lane(StrEnum):
    DATA = "data"
    CONTROL = "control"


class Node(NamedTuple):
    """A stage's place in the graph."""

    name: str
    use: str
    """The built-in class, by import path; config.toml may name another."""
    inbox_bound: int
    """Default bound of the data lane, in messages."""
    workers: int | None = None
    """Default number of instances that share the inbox; None: this stage is never a pool."""


class Link(NamedTuple):
    source: str
    target: str
    carries: type
    lane: Lane = Lane.DATA


CREDITS = 2
"""Default of how many steps may be in flight on the device: one runs while the next is prepared."""

NODES = (  # in data order; started from the last to the first, drained from the first to the last
    Node("ingress", "pipeline.stages.ingress:Ingress", 1),
    Node("tokenize", "pipeline.stages.tokenize:Tokenize", 256, workers=2),
    Node("schedule", "pipeline.stages.schedule:Schedule", 64),
    Node("execute", "pipeline.stages.execute:Execute", 8),
    Node("sample", "pipeline.stages.sample:Sample", 8),
    Node("detokenize", "pipeline.stages.detokenize:Detokenize", 8),
    Node("stream", "pipeline.stages.stream:Stream", 8),
)

LINKS = (
    Link("ingress", "tokenize", GenerateRequest),
    Link("ingress", "stream", Open, Lane.CONTROL),
    Link("ingress", "schedule", Cancel, Lane.CONTROL),
    Link("tokenize", "schedule", TokenizedRequest),
    Link("tokenize", "schedule", Rejected, Lane.CONTROL),
    Link("schedule", "execute", StepPlan),
    Link("schedule", "execute", DiskMoves, Lane.CONTROL),
    Link("schedule", "detokenize", TokenBatch),
    Link("schedule", "stream", Rejected, Lane.CONTROL),
    Link("execute", "schedule", DeviceReady, Lane.CONTROL),
    Link("execute", "schedule", DiskMoved, Lane.CONTROL),
    Link("execute", "sample", StepHandle),
    Link("sample", "schedule", SampledBatch, Lane.CONTROL),
    Link("detokenize", "stream", TextBatch),
    Link("detokenize", "schedule", Cancel, Lane.CONTROL),
    Link("stream", "schedule", Cancel, Lane.CONTROL),
    Link("stream", "schedule", Pause, Lane.CONTROL),
    Link("stream", "schedule", Resume, Lane.CONTROL),
)
