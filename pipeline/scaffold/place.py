"""Where in the graph a new stage stands: what it takes and gives, and what it begins as."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from pipeline.errors import ConfigError
from pipeline.scaffold.words import message_type, stage_name
from pipeline.topology import LINKS, NODES, WHOLE, Lane, Link, Node


class Place(NamedTuple):
    """A place for one stage."""

    node: Node
    takes: tuple[type, ...]
    gives: tuple[type, ...]
    passes: tuple[type, ...] = ()
    """What it passes on; empty: it begins as the built-in stage of this place."""
    between: tuple[str, str] = ("", "")
    """Where it passes things on: from whom to whom."""

    @property
    def is_new(self) -> bool:
        """The graph has no node for it yet."""
        return not self.node.use


def in_place_of(stage: str) -> Place:
    """That of a built-in stage. Raises ConfigError."""
    stage_name("--in-place-of", stage, WHOLE.names)
    if not _sent(stage):
        raise ConfigError(f"--in-place-of {stage}: {stage} is sent no messages, so there is none to handle")
    node = WHOLE.nodes[WHOLE.names.index(stage)]
    return Place(node, _sent(stage), _carried(stage))


def between(source: str, target: str, name: str) -> Place:
    """On all data from one stage to another, for the stage `name`. Raises ConfigError."""
    nodes = {node.name: node for node in NODES}
    for stage in (source, target):
        stage_name("--between", stage, nodes)
    passes = tuple(link.carries for link in _data(LINKS) if link[:2] == (source, target))
    if not passes:
        ways = ", ".join(dict.fromkeys(f"{link.source} {link.target}" for link in _data(LINKS)))
        raise ConfigError(f"--between {source} {target}: no data goes that way. It goes between: {ways}")
    through = {link[:3] for link in _data(WHOLE.links) if link.when is None}
    for node in WHOLE.nodes:
        if {
            way for kind in passes for way in ((source, node.name, kind), (node.name, target, kind))
        } <= through:
            return Place(node, passes, passes, passes, (source, target))
    return Place(Node(name, "", nodes[target].inbox_bound), passes, passes, passes, (source, target))


def of_types(takes: Collection[str], gives: Collection[str], name: str) -> Place:
    """Where these types lead. Raises ConfigError: nowhere, or more is sent there, or no link carries them."""
    taken = tuple(message_type("--takes", word) for word in takes)
    given = tuple(message_type("--gives", word) for word in gives)
    for link in _data(LINKS):
        if link.carries in taken and link.carries in given:
            return _fitted(between(link.source, link.target, name), taken, given)
    for node in NODES:
        if {*_sent(node.name, Lane.DATA)} & {*taken} and {*_carried(node.name)} & {*given}:
            return _fitted(in_place_of(node.name), taken, given)
    ways = "".join(
        f"\n  {node.name:<12}{names(_sent(node.name, Lane.DATA))} -> {names(_carried(node.name))}"
        for node in NODES[1:]
    )
    raise ConfigError(
        f"--takes {names(taken)} --gives {names(given)}: nothing stands between these. A stage passes on "
        f"what it takes, or takes and gives what one of these does:{ways}"
    )


def names(types: Collection[type]) -> str:
    return ",".join(each.__name__ for each in types)


def _fitted(place: Place, taken: tuple[type, ...], given: tuple[type, ...]) -> Place:
    """The place, for a stage of these types."""
    stage = place.node.name
    if missing := [kind for kind in place.takes if kind not in taken]:
        raise ConfigError(f"--takes {names(taken)}: {stage} is also sent {names(missing)}")
    may_give = place.gives if place.is_new else _carried(stage)
    if unknown := [kind for kind in given if kind not in may_give]:
        raise ConfigError(f"--gives {names(given)}: no link from {stage} carries {names(unknown)}")
    return place._replace(takes=taken, gives=given)


def _data(links: Iterable[Link]) -> list[Link]:
    return [link for link in links if link.lane is Lane.DATA]


def _sent(stage: str, *lanes: Lane) -> tuple[type, ...]:
    """What the stage is sent, on these lanes or on any."""
    links = (link for link in WHOLE.links if link.target == stage and link.lane in (lanes or Lane))
    return tuple(dict.fromkeys(link.carries for link in links))


def _carried(stage: str) -> tuple[type, ...]:
    """What links carry from the stage."""
    return tuple(dict.fromkeys(link.carries for link in WHOLE.links if link.source == stage))
