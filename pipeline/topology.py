"""THE graph: nodes, links, bounds and lanes - data, no code. ARCHITECTURE.md draws it.

A link carries one message type from one stage to another. `data` links are bounded by the inbox of the
stage they lead to; `control` links never wait (at most a few messages per live request or per credit).
The only cycle, schedule -> execute -> sample -> schedule, is closed by credits: the scheduler has at most
`credits` plans out, so no inbox on the cycle can be full.

config.toml may name another Graph: one that is written out, or made of WHOLE by the methods of Graph, each of
which gives a new one. What must hold for it to run is in pipeline.graph_rules.
"""

from collections.abc import Collection
from enum import StrEnum
from math import inf
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
    """In the graph only where config.toml has its table; see Graph.without."""


class When(NamedTuple):
    """Messages in which a field lies in a range, its ends included."""

    field: str
    """A number of the message, such as "terms.priority"."""
    at_least: float = -inf
    at_most: float = inf


class Link(NamedTuple):
    source: str
    target: str
    carries: type
    lane: Lane = Lane.DATA
    when: When | None = None
    """Of links that carry one type from one stage to several: which messages take this one. The first that
    fits takes a message; None: the one that takes all others."""


class Graph(NamedTuple):
    nodes: tuple[Node, ...]
    """In data order; started from the last to the first, drained from the first to the last."""
    links: tuple[Link, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    def with_node(self, node: Node, *, after: str) -> "Graph":
        """With one more node, next in data order. Raises ValueError where there is no `after`."""
        place = self._place(after) + 1
        return self._replace(nodes=(*self.nodes[:place], node, *self.nodes[place:]))

    def with_links(self, *links: Link) -> "Graph":
        return self._replace(links=(*self.links, *links))

    def between(self, source: str, target: str, node: Node) -> "Graph":
        """With a node through which goes all data of `source` for `target`. What it gives besides needs
        links of its own. Raises ValueError where no data link joins the two.
        """
        self._place(target)
        links: list[Link] = []
        for link in self.links:
            if (link.source, link.target, link.lane) == (source, target, Lane.DATA):
                links += [link._replace(target=node.name), link._replace(source=node.name, when=None)]
            else:
                links.append(link)
        if len(links) == len(self.links):
            raise ValueError(f"no data link leads from {source} to {target}")
        return self.with_node(node, after=source)._replace(links=tuple(links))

    def without(self, name: str) -> "Graph":
        """Without a node: whoever sent to it sends to where it would have sent the same on, and the links for
        what it would not have sent on go with it; so do choices between a target and the same target. Raises
        ValueError where there is no such node.
        """
        self._place(name)
        onward = {link.carries: link.target for link in self.links if link.source == name}
        links: list[Link] = []
        for link in self.links:
            if link.target == name and link.carries in onward:
                links.append(link._replace(target=onward[link.carries]))
            elif name not in (link.source, link.target):
                links.append(link)
        links = [link for link in links if link.when is None or link._replace(when=None) not in links]
        return Graph(tuple(node for node in self.nodes if node.name != name), tuple(links))

    def chosen(self, names: Collection[str]) -> "Graph":
        """Without the optional nodes that are not named."""
        graph = self
        for node in self.nodes:
            if node.is_optional and node.name not in names:
                graph = graph.without(node.name)
        return graph

    def _place(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"there is no node {name!r}; there are {', '.join(self.names)}")
        return self.names.index(name)


CREDITS = 2
"""Default of how many steps may be in flight on the device: one runs while the next is prepared."""

_ALL_NODES = (
    Node("ingress", "pipeline.stages.ingress:Ingress", 1),
    Node("images", "pipeline.stages.images:Images", 16, workers=1, is_optional=True),
    Node("tokenize", "pipeline.stages.tokenize:Tokenize", 256, workers=2),
    Node("schedule", "pipeline.stages.schedule:Schedule", 64),
    Node("execute", "pipeline.stages.execute:Execute", 8),
    Node("sample", "pipeline.stages.sample:Sample", 8),
    Node("detokenize", "pipeline.stages.detokenize:Detokenize", 8),
    Node("filter", "pipeline.stages.filter:Filter", 8, is_optional=True),
    Node("stream", "pipeline.stages.stream:Stream", 8),
)

_ALL_LINKS = (
    Link("ingress", "images", GenerateRequest, when=When("num_image_tokens", at_least=1)),
    Link("ingress", "tokenize", GenerateRequest),
    Link("ingress", "tokenize", TokenCall),
    Link("ingress", "stream", Open, Lane.CONTROL),
    Link("ingress", "stream", Grant, Lane.CONTROL),
    Link("ingress", "schedule", Cancel, Lane.CONTROL),
    Link("images", "tokenize", GenerateRequest),
    Link("images", "schedule", Rejected, Lane.CONTROL),
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


NODES, LINKS = WHOLE.chosen(())
"""The default graph."""
