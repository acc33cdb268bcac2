"""Wiring: from the links of a graph and the inboxes of its nodes to what a stage sends through."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from pipeline.graph_rules import ways
from pipeline.runtime.choice import Choice, Way
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import Outlet
from pipeline.topology import Graph, Lane, Link, When


def outlets(graph: Graph, name: str, inboxes: Mapping[str, Inbox[Any]]) -> dict[type, Outlet[Any]]:
    """By type, for the node `name`: an inbox, where one link carries the type, else a choice of them."""
    links = [link for link in graph.links if link.source == name]
    return {carries: _outlet(each, inboxes) for (_, carries), each in ways(links).items()}


def senders(graph: Graph, name: str) -> tuple[str, ...]:
    """Whose data links lead to this node, in data order."""
    links = [link for link in graph.links if link.target == name and link.lane is Lane.DATA]
    return tuple(each for each in graph.names if any(link.source == each for link in links))


def _outlet(links: list[Link], inboxes: Mapping[str, Inbox[Any]]) -> Outlet[Any]:
    if len(links) == 1:
        return inboxes[links[0].target]
    (otherwise,) = (link.target for link in links if link.when is None)
    chosen = [Way(inboxes[link.target], _fits(link.when)) for link in links if link.when is not None]
    return Choice(chosen, inboxes[otherwise])


def _fits(when: When) -> Callable[[Any], bool]:
    value_of, at_least, at_most = attrgetter(when.field), when.at_least, when.at_most
    return lambda message: at_least <= value_of(message) <= at_most
