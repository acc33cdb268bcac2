"""Graph rules: what must hold for a Graph to run. Each fault is one sentence that names what is broken.

A rule may rely on those before it in RULES. What the classes of the nodes take and give is checked by
assemble, which knows them.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, get_args, get_origin

import msgspec

from pipeline.errors import ConfigError
from pipeline.messages import SampledBatch, StepHandle, StepPlan
from pipeline.topology import NODES, Graph, Lane, Link, Node, When

REQUIRED = tuple(node.name for node in NODES)
"""What the runtime, the doctor and the page find by name."""
CYCLE = (StepPlan, StepHandle, SampledBatch)
"""What goes round it, in this order."""
MAX_WORKERS = 256
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check(key: str, graph: object) -> Graph:
    """The value, if it is a graph that can run. Raises ConfigError with the first fault; `key` begins it."""
    if not isinstance(graph, Graph):
        raise ConfigError(f"{key}: must be a pipeline.topology.Graph, not {type(graph).__name__}")
    for fault in faults(graph):
        raise ConfigError(f"{key}: {fault}")
    return graph


def faults(graph: Graph) -> Iterator[str]:
    """What is broken. After the first, others may follow from it."""
    for rule in RULES:
        yield from rule(graph)


def step_cycle(graph: Graph) -> tuple[str, ...]:
    """The nodes round which a plan and its result go, from `schedule` on. Of a graph without faults."""
    return tuple(link.source for link in _cycle(graph))


def _kinds(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if not isinstance(node, Node):
            yield f"among its nodes is {node!r}, which is no Node"
    for link in graph.links:
        if not isinstance(link, Link):
            yield f"among its links is {link!r}, which is no Link"
        elif not isinstance(link.carries, type):
            yield f"the link {_ends(link)} carries {link.carries!r}, which is no type of message"
        elif not isinstance(link.lane, Lane):
            yield f"the link {_shown(link)} has the lane {link.lane!r}, which is no Lane"


def _names(graph: Graph) -> Iterator[str]:
    for name, count in Counter(graph.names).items():
        if not _NAME.fullmatch(name):
            yield f"the node {name!r} needs a name of small letters, digits and _ that begins with a letter"
        if count > 1:
            yield f"{count} nodes are called {name}"
    for name in REQUIRED:
        if name not in graph.names:
            yield f"it has no node {name}; there must be {', '.join(REQUIRED)}"


def _bounds(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if not _is_whole(node.inbox_bound) or node.inbox_bound < 1:
            yield f"{node.name} has inbox_bound = {node.inbox_bound!r}, which must be at least 1"
        if node.workers is not None and not (_is_whole(node.workers) and 1 <= node.workers <= MAX_WORKERS):
            yield f"{node.name} has workers = {node.workers!r}, which must be 1 to {MAX_WORKERS}, or None"


def _link_ends(graph: Graph) -> Iterator[str]:
    for link in graph.links:
        for name in (link.source, link.target):
            if name not in graph.names:
                yield f"the link {_shown(link)} needs a node {name!r}; there are {', '.join(graph.names)}"
    for link, count in Counter(graph.links).items():
        if count > 1:
            yield f"the link {_shown(link)} is there {count} times"


def _divided(graph: Graph) -> Iterator[str]:
    """Links of one type from one node: which message takes which must be clear."""
    for (source, carries), links in ways(graph.links).items():
        what = f"{carries.__name__} of {source}"
        if sum(link.when is None for link in links) != 1:
            targets = ", ".join(link.target for link in links)
            yield f"of the links for {what} (to {targets}) exactly one must be without `when`"
        if len({link.lane for link in links}) > 1:
            yield f"the links for {what} must all be of one lane"
        for link in links:
            if link.when is not None:
                yield from _when_faults(link, link.when)


def _when_faults(link: Link, when: object) -> Iterator[str]:
    if not isinstance(when, When):
        yield f"the link {_shown(link)} has when = {when!r}, which is no When"
        return
    if not _is_number(link.carries, "request_id"):
        yield f"the link {_shown(link)} has a `when`, but its messages are not of one request each"
    elif not _is_number(link.carries, when.field):
        yield f"the link {_shown(link)} has when.field = {when.field!r}, which is no number of its messages"
    elif not _is_range(when):
        yield f"the link {_shown(link)} has a `when` from {when.at_least!r} to {when.at_most!r}: no range"


def _data_order(graph: Graph) -> Iterator[str]:
    places = {name: place for place, name in enumerate(graph.names)}
    if graph.names[0] != "ingress":
        yield f"its first node must be ingress, and is {graph.names[0]}"
    for link in graph.links:
        if link.lane is Lane.DATA and places[link.target] <= places[link.source]:
            yield f"the data link {_shown(link)} leads backwards: only control links may, for they never wait"
    fed = {link.target for link in graph.links if link.lane is Lane.DATA}
    for name in graph.names[1:]:
        if name not in fed:
            yield f"no data link leads to {name}"


def _one_cycle(graph: Graph) -> Iterator[str]:
    cycle = _cycle(graph)
    round_trip = " -> ".join(("schedule", *(link.target for link in cycle)))
    if tuple(dict.fromkeys(link.carries for link in cycle)) != CYCLE or cycle[-1].target != "schedule":
        yield f"a plan must come back to schedule as {CYCLE[-1].__name__}, but goes {round_trip}"
    for link in graph.links:
        if link.carries in CYCLE and link not in cycle:
            yield f"the link {_shown(link)} is not on the one cycle that credits close, {round_trip}"


def _steps_in_order(graph: Graph) -> Iterator[str]:
    """From schedule on a message is a step: all go one way, in their order."""
    after = graph.names[graph.names.index("schedule") :]
    for node in graph.nodes:
        if node.workers is not None and node.name in (*after, "ingress"):
            yield f"{node.name} has workers = {node.workers}, but only nodes before schedule may be pools"
    for name in after[1:]:
        sources = {link.source for link in graph.links if link.target == name and link.lane is Lane.DATA}
        if len(sources) > 1:
            who = " and ".join(sorted(sources))
            yield f"{name} is sent data by {who}: after schedule it must be one node"


def _optional(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if not node.is_optional:
            continue
        if node.name in REQUIRED:
            yield f"{node.name} must not be optional"
        onward = Counter(link.carries for link in graph.links if link.source == node.name)
        for link in graph.links:
            if link.target == node.name and onward[link.carries] > 1:
                yield f"{node.name} is optional, so what it is sent by {_shown(link)} must go one way onward"


RULES: tuple[Callable[[Graph], Iterator[str]], ...] = (
    _kinds,
    _names,
    _bounds,
    _link_ends,
    _divided,
    _data_order,
    _one_cycle,
    _steps_in_order,
    _optional,
)


def ways(links: Iterable[Link]) -> dict[tuple[str, type], list[Link]]:
    """By source and type, in their order."""
    found: dict[tuple[str, type], list[Link]] = {}
    for link in links:
        found.setdefault((link.source, link.carries), []).append(link)
    return found


def _cycle(graph: Graph) -> list[Link]:
    """The way of a plan and of what becomes of it, until it is back at schedule, or goes no further."""
    onward = {(link.source, link.carries): link for link in graph.links}
    passed: list[Link] = []
    at = "schedule"
    for carries in CYCLE:
        while (link := onward.get((at, carries))) is not None and link not in passed:
            passed.append(link)
            at = link.target
            if at == "schedule":
                break
    return passed


def _is_number(message: Any, path: str) -> bool:
    """Whether the path, such as "terms.priority", leads to an int or float of a message of this type."""
    for name in path.split("."):
        if not (isinstance(message, type) and issubclass(message, msgspec.Struct)):
            return False
        fields = {field.name: field.type for field in msgspec.structs.fields(message)}
        message = fields.get(name)
        if get_origin(message) is Annotated:
            message = get_args(message)[0]
    return message in (int, float)


def _is_range(when: When) -> bool:
    ends = (when.at_least, when.at_most)
    return all(isinstance(end, int | float) for end in ends) and ends[0] <= ends[1]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ends(link: Link) -> str:
    return f"{link.source} -> {link.target}"


def _shown(link: Link) -> str:
    return f"{_ends(link)} ({link.carries.__name__})"
