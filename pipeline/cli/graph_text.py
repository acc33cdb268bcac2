"""A graph as text for people, or for Mermaid (https://mermaid.js.org), which draws it in a web page."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from pipeline.config import StageConfig
from pipeline.topology import Graph, Lane, Link, When

ARROWS = {Lane.DATA: "->", Lane.CONTROL: ".>"}


def as_text(graph: Graph, stages: Mapping[str, StageConfig]) -> str:
    """A node, then a line for each node that it sends to."""
    lines: list[str] = []
    for name in graph.names:
        stage = stages[name]
        workers = f", {stage.workers} workers" if stage.workers > 1 else ""
        lines.append(f"{name}  ({stage.use}, inbox {stage.inbox}{workers})")
        lines += [f"  {arrow} {target}  {words}" for arrow, target, words in _sent(graph, name)]
    return "\n".join([*lines, "", "-> data, waits where the inbox is full    .> control, never waits"])


def as_mermaid(graph: Graph) -> str:
    """Mermaid's flowchart; control links are dotted."""
    lines = ["flowchart LR", *(f"  {name}" for name in graph.names)]
    for name in graph.names:
        for arrow, target, words in _sent(graph, name):
            line = "-->" if arrow == ARROWS[Lane.DATA] else "-.->"
            lines.append(f'  {name} {line}|"{words}"| {target}')
    return "\n".join(lines)


def _sent(graph: Graph, name: str) -> Iterator[tuple[str, str, str]]:
    """By target and lane: the arrow, the target, and what goes there."""
    links = [link for link in graph.links if link.source == name]
    links.sort(key=lambda link: graph.names.index(link.target))
    for lane, target in dict.fromkeys((link.lane, link.target) for link in links):
        yield (
            ARROWS[lane],
            target,
            _words(link for link in links if (link.lane, link.target) == (lane, target)),
        )


def _words(links: Iterable[Link]) -> str:
    return ", ".join(link.carries.__name__ + (_condition(link.when) if link.when else "") for link in links)


def _condition(when: When) -> str:
    ends = [f">= {when.at_least:g}"] * (when.at_least > -inf) + [f"<= {when.at_most:g}"] * (
        when.at_most < inf
    )
    return f" where {when.field} {' and '.join(ends)}" if ends else ""
