"""Broken graphs: each is refused, and the fault names what is broken."""

from collections.abc import Callable
from typing import Any

import pytest

from examples.house_rules.graph import HOUSE_RULES
from examples.two_pools.graph import TWO_POOLS
from pipeline import assemble, graph_rules
from pipeline import config as configuration
from pipeline.errors import ConfigError
from pipeline.messages import (
    Cancel,
    GenerateRequest,
    SampledBatch,
    StepHandle,
    StepPlan,
    TextBatch,
    TokenBatch,
    TokenizedRequest,
)
from pipeline.topology import WHOLE, Graph, Lane, Link, Node, When

EXTRA = Node("extra", "my_lab:Extra", 4)


def node(graph: Graph, name: str, **changes: Any) -> Graph:
    """With another node of that name."""
    changed = [each._replace(**changes) if each.name == name else each for each in graph.nodes]
    return graph._replace(nodes=tuple(changed))


def links(graph: Graph, keep: Callable[[Link], bool], *more: Link) -> Graph:
    return graph._replace(links=(*filter(keep, graph.links), *more))


def divided(when: object = None, lane: Lane = Lane.DATA, carries: type = GenerateRequest) -> Graph:
    fed = WHOLE.with_node(EXTRA, after="ingress").with_links(
        Link("extra", "schedule", Cancel, Lane.CONTROL), Link("ingress", "extra", TokenizedRequest)
    )
    more: Any = Link("ingress", "extra", carries, lane, when)  # type: ignore[arg-type]
    return fed.with_links(more)


BROKEN = {
    "something else": (WHOLE._replace(nodes=(*WHOLE.nodes, "extra")), "nodes is 'extra', which is no Node"),  # type: ignore[arg-type]
    "no type": (
        WHOLE.with_links(Link("tokenize", "stream", "Open", Lane.CONTROL)),  # type: ignore[arg-type]
        "the link tokenize -> stream carries 'Open', which is no type",
    ),
    "no lane": (
        WHOLE.with_links(Link("tokenize", "stream", Cancel, "side")),  # type: ignore[arg-type]
        "tokenize -> stream .Cancel. has the lane 'side'",
    ),
    "a name with a dot": (
        WHOLE.with_node(EXTRA._replace(name="my.extra"), after="tokenize"),
        "the node 'my.extra' needs a name of small letters",
    ),
    "two of one name": (
        WHOLE.with_node(EXTRA._replace(name="sample"), after="tokenize"),
        "2 nodes are called sample",
    ),
    "one is lacking": (WHOLE.without("detokenize"), "it has no node detokenize; there must be ingress, "),
    "no room": (node(WHOLE, "stream", inbox_bound=0), "stream has inbox_bound = 0, which must be at least 1"),
    "no worker": (node(WHOLE, "tokenize", workers=0), "tokenize has workers = 0, which must be 1 to 256"),
    "no such target": (
        WHOLE.with_links(Link("tokenize", "extra", Cancel, Lane.CONTROL)),
        "the link tokenize -> extra .Cancel. needs a node 'extra'; there are ",
    ),
    "twice": (WHOLE.with_links(WHOLE.links[-1]), "the link .* is there 2 times"),
    "undivided": (
        divided(),
        "GenerateRequest of ingress .to images, tokenize, extra. exactly one must be without `when`",
    ),
    "all conditions": (
        links(
            WHOLE,
            lambda link: link.carries is not Cancel,
            Link("stream", "schedule", Cancel, Lane.CONTROL, When("request_id")),
        ),
        "of the links for Cancel of stream .to schedule. exactly one must be without `when`",
    ),
    "of two lanes": (
        divided(When("terms.priority", 1), Lane.CONTROL),
        "the links for GenerateRequest of ingress must all be of one lane",
    ),
    "no such field": (divided(When("terms.urgency", 1)), "when.field = 'terms.urgency', which is no number"),
    "no number": (divided(When("terms.tenant", 1)), "when.field = 'terms.tenant', which is no number"),
    "no range": (divided(When("terms.priority", 2, 1)), "has a `when` from 2 to 1: no range"),
    "no numbers": (divided(When("terms.priority", "1")), "has a `when` from '1' to inf: no range"),  # type: ignore[arg-type]
    "no When": (divided(lambda message: True), "which is no When"),
    "of many requests": (
        WHOLE.with_node(EXTRA, after="detokenize").with_links(
            Link("detokenize", "extra", TextBatch, when=When("step_id", 1)),
            Link("extra", "stream", TextBatch),
        ),
        "detokenize -> extra .TextBatch. has a `when`, but its messages are not of one request each",
    ),
    "ingress is not first": (
        WHOLE._replace(nodes=(EXTRA, *WHOLE.nodes)),
        "its first node must be ingress, and is extra",
    ),
    "backwards": (
        WHOLE.with_links(Link("stream", "detokenize", TokenBatch)),
        "the data link stream -> detokenize .TokenBatch. leads backwards",
    ),
    "to itself": (
        WHOLE.with_links(Link("stream", "stream", TextBatch)),
        "stream -> stream .TextBatch. leads backwards",
    ),
    "not fed": (WHOLE.with_node(EXTRA, after="tokenize"), "no data link leads to extra"),
    "a plan that does not come back": (
        links(WHOLE, lambda link: link.carries is not SampledBatch),
        "a plan must come back to schedule as SampledBatch, but goes schedule -> execute -> sample",
    ),
    "a plan past the device": (
        links(WHOLE, lambda link: link.carries is not StepHandle, Link("execute", "sample", StepPlan)),
        "a plan must come back to schedule as SampledBatch, but goes schedule -> execute -> sample",
    ),
    "a second cycle": (
        WHOLE.with_links(Link("detokenize", "schedule", SampledBatch, Lane.CONTROL)),
        "detokenize -> schedule .SampledBatch. is not on the one cycle .* -> sample -> schedule",
    ),
    "a pool of steps": (
        node(WHOLE, "detokenize", workers=2),
        "detokenize has workers = 2, but only nodes before",
    ),
    "two senders of steps": (
        WHOLE.with_links(Link("tokenize", "detokenize", TokenBatch)),
        "detokenize is sent data by schedule and tokenize: after schedule it must be one node",
    ),
    "optional and needed": (node(WHOLE, "sample", is_optional=True), "sample must not be optional"),
}


@pytest.mark.parametrize(("graph", "fault"), BROKEN.values(), ids=BROKEN)
def test_a_broken_graph_is_refused(graph: Graph, fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"^my\.toml: topology\.use: .*{fault}"):
        graph_rules.check("my.toml: topology.use", graph)


def test_what_is_optional_must_be_left_out_in_one_way() -> None:
    when = When("terms.priority", 1)
    graph = (
        WHOLE.chosen(())
        .with_node(EXTRA._replace(is_optional=True), after="ingress")
        .with_links(
            Link("extra", "tokenize", GenerateRequest), Link("ingress", "extra", GenerateRequest, when=when)
        )
    )
    assert not list(graph_rules.faults(graph))
    two = graph.with_links(Link("extra", "schedule", GenerateRequest, when=when))
    assert list(graph_rules.faults(two)) == [
        "extra is optional, so what it is sent by ingress -> extra (GenerateRequest) must go one way onward"
    ]


def test_only_a_graph_is_one() -> None:
    with pytest.raises(ConfigError, match=r"^key: must be a pipeline.topology.Graph, not tuple"):
        graph_rules.check("key", tuple(WHOLE))


@pytest.mark.parametrize("graph", [WHOLE, TWO_POOLS, HOUSE_RULES])
def test_ours_are_sound(graph: Graph) -> None:
    assert graph_rules.check("key", graph) is graph
    assert not list(graph_rules.faults(graph.chosen(())))
    assert graph_rules.step_cycle(graph) == ("schedule", "execute", "sample")


def test_a_stage_may_stand_on_the_cycle() -> None:
    graph = WHOLE.between("schedule", "execute", EXTRA)
    assert not list(graph_rules.faults(graph))
    assert graph_rules.step_cycle(graph) == ("schedule", "extra", "execute", "sample")


def test_every_inbox_on_the_cycle_holds_the_credits() -> None:
    toml = '[topology]\nuse = "tests.e2e.odd_graphs:LATE"\n[stages.schedule.options]\ncredits = 4\n'
    assemble.check(configuration.loads(toml, "my.toml"))
    with pytest.raises(
        ConfigError, match=r"^my\.toml: stages\.late_plan\.inbox = 3: must be at least .* is 4$"
    ):
        assemble.check(configuration.loads(toml + "[stages.late_plan]\ninbox = 3\n", "my.toml"))
