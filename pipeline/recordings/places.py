"""Places: what the names of links mean to those who ask for a recording."""

from typing import NamedTuple

from pipeline.messages.recorded import KINDS
from pipeline.topology import Graph


class Place(NamedTuple):
    """What is recorded: of one stage's inbox, all or some."""

    name: str
    """As it is asked for: "schedule->detokenize", or "->detokenize" for all that the stage takes."""
    stage: str
    links: tuple[str, ...]
    kinds: frozenset[str] | None
    """Of messages (messages.recorded); None: all, those that no link carries included."""


def places(graph: Graph) -> list[Place]:
    """All that can be recorded, in data order. A message does not say who sent it: where two stages send the
    same type to a third, the recording of either link has the messages of both.
    """
    return [place for name in graph.names for place in _of_stage(graph, name)]


def place_named(graph: Graph, name: str) -> Place:
    """A stage's name alone means all that it takes. Raises ValueError, which says what there is."""
    known = places(graph)
    bare = name.replace(" ", "")
    for place in known:
        if place.name in (bare, f"->{bare}"):
            return place
    names = ", ".join(place.name for place in known)
    raise ValueError(
        f"no link is called {name!r}. There are {names}; a stage's name alone is all that it takes"
    )


def _of_stage(graph: Graph, stage: str) -> list[Place]:
    kinds: dict[str, set[str]] = {}
    for link in graph.links:
        if link.target == stage:
            kinds.setdefault(f"{link.source}->{stage}", set()).add(link.carries.__name__)
    each = [Place(name, stage, (name,), frozenset(carried)) for name, carried in kinds.items()]
    known = [place for place in each if place.kinds is not None and place.kinds <= KINDS]
    if not each or len(known) < len(each):
        return known  # it takes nothing, or what the codec does not know
    return [Place(f"->{stage}", stage, tuple(kinds), None), *known]
