"""THE graph: nodes, links, bounds and lanes - data, no code. ARCHITECTURE.md draws it.

A link carries one message type from one stage to another. `data` links are bounded by the inbox of the
stage they lead to; `control` links never wait (at most a few messages per live request or per credit).
The only cycle, schedule -> execute -> sample -> schedule, is closed by credits: the scheduler has at most
`credits` plans out, so no inbox on the cycle can be full.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from pipeline.messages import (
    Cancel,
    DeviceLost,
    DeviceReady,
    DiskMoved,
    DiskMoves,
    GenerateRequest,
    Grant,
    Open,
    Pause,
    Rejected,
    Reopen,
    Resume,
    SampledBatch,
    StepHandle,
    StepPlan,
    TextBatch,
    TokenBatch,
    TokenCall,
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
    is_optional: bool = False
    """In the graph only where config.toml has its table. Without it, whoever sends to it sends on."""


class Link(NamedTuple):
    source: str
    target: str
    carries: type
    lane: Lane = Lane.DATA


class Graph(NamedTuple):
    nodes: tuple[Node, ...]
    """In data order; started from the last to the first, drained from the first to the last."""
    links: tuple[Link, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)


CREDITS = 2
"""Default of how many steps may be in flight on the device: one runs while the next is prepared."""

_ALL_NODES = (
    Node("ingress", "pipeline.stages.ingress:Ingress", 1),
    Node("tokenize", "pipeline.stages.tokenize:Tokenize", 256, workers=2),
    Node("schedule", "pipeline.stages.schedule:Schedule", 64),
    Node("execute", "pipeline.stages.execute:Execute", 8),
    Node("sample", "pipeline.stages.sample:Sample", 8),
    Node("detokenize", "pipeline.stages.detokenize:Detokenize", 8),
    Node("filter", "pipeline.stages.filter:Filter", 8, is_optional=True),
    Node("stream", "pipeline.stages.stream:Stream", 8),
)

_ALL_LINKS = (
    Link("ingress", "tokenize", GenerateRequest),
    Link("ingress", "tokenize", TokenCall),
    Link("ingress", "stream", Open, Lane.CONTROL),
    Link("ingress", "stream", Grant, Lane.CONTROL),
    Link("ingress", "schedule", Cancel, Lane.CONTROL),
    Link("tokenize", "schedule", TokenizedRequest),
    Link("tokenize", "schedule", Rejected, Lane.CONTROL),
    Link("schedule", "execute", StepPlan),
    Link("schedule", "execute", DiskMoves, Lane.CONTROL),
    Link("schedule", "execute", Reopen, Lane.CONTROL),
    Link("schedule", "detokenize", TokenBatch),
    Link("schedule", "stream", Rejected, Lane.CONTROL),
    Link("execute", "schedule", DeviceReady, Lane.CONTROL),
    Link("execute", "schedule", DeviceLost, Lane.CONTROL),
    Link("execute", "schedule", DiskMoved, Lane.CONTROL),
    Link("execute", "sample", StepHandle),
    Link("sample", "schedule", SampledBatch, Lane.CONTROL),
    Link("detokenize", "filter", TextBatch),
    Link("detokenize", "schedule", Cancel, Lane.CONTROL),
    Link("filter", "stream", TextBatch),
    Link("filter", "schedule", Cancel, Lane.CONTROL),
    Link("stream", "schedule", Cancel, Lane.CONTROL),
    Link("stream", "schedule", Pause, Lane.CONTROL),
    Link("stream", "schedule", Resume, Lane.CONTROL),
)

WHOLE = Graph(_ALL_NODES, _ALL_LINKS)
"""With every stage that there can be."""


def graph(names: Collection[str]) -> Graph:
    """The whole graph without the optional stages that are not named."""
    absent = [node.name for node in WHOLE.nodes if node.is_optional and node.name not in names]
    links = list(WHOLE.links)
    for name in absent:
        links = _without(links, name)
    return Graph(tuple(node for node in WHOLE.nodes if node.name not in absent), tuple(links))


def _without(links: list[Link], name: str) -> list[Link]:
    """Whoever sent to it sends to where it would have sent the same on."""
    onward = {link.carries: link.target for link in links if link.source == name}
    return [
        link._replace(target=onward[link.carries]) if link.target == name else link
        for link in links
        if link.source != name
    ]


NODES, LINKS = graph(())
"""The default graph."""
