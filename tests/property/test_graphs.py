"""Whatever is made of WHOLE by the edits can run; whatever is broken of it is refused by name."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import graph_rules
from pipeline.messages import GenerateRequest, Rejected, TokenizedRequest
from pipeline.topology import WHOLE, Graph, Lane, Link, Node, When

USE = "my_lab.stages:Any"


def data_pairs(graph: Graph) -> list[tuple[str, str]]:
    return sorted({(link.source, link.target) for link in graph.links if link.lane is Lane.DATA})


def with_between(graph: Graph, name: str, draw: st.DrawFn) -> Graph:
    source, target = draw(st.sampled_from(data_pairs(graph)))
    is_optional = draw(st.booleans())
    return graph.between(source, target, Node(name, USE, draw(st.integers(1, 99)), is_optional=is_optional))


def with_pool(graph: Graph, name: str, draw: st.DrawFn) -> Graph:
    """Beside tokenize, for a range of priorities."""
    ends = sorted(draw(st.lists(st.integers(-9, 9), min_size=2, max_size=2)))
    optional = {node.name for node in graph.nodes if node.is_optional}
    dividing = {link.source for link in graph.links if link.carries is GenerateRequest} - optional
    source = draw(st.sampled_from(sorted(dividing)))
    return graph.with_node(Node(name, USE, 8, workers=draw(st.integers(1, 4))), after=source).with_links(
        Link(source, name, GenerateRequest, when=When("terms.priority", *ends)),
        Link(name, "schedule", TokenizedRequest),
        Link(name, "schedule", Rejected, Lane.CONTROL),
    )


def with_tap(graph: Graph, name: str, draw: st.DrawFn) -> Graph:
    """A control link more."""
    source, target = draw(st.lists(st.sampled_from(graph.names), min_size=2, max_size=2))
    return graph.with_links(Link(source, target, type(name.title(), (), {}), Lane.CONTROL))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    graph = WHOLE
    for number in range(draw(st.integers(0, 5))):
        edit = draw(st.sampled_from((with_between, with_pool, with_tap)))
        graph = edit(graph, f"extra_{number}", draw)
    return graph


@settings(max_examples=50)
@given(graphs(), st.data())
def test_a_graph_made_by_edits_can_run_with_any_of_its_optional_nodes(
    graph: Graph, data: st.DataObject
) -> None:
    assert list(graph_rules.faults(graph)) == []
    optional = [node.name for node in graph.nodes if node.is_optional]
    chosen = graph.chosen(data.draw(st.sets(st.sampled_from(optional))) if optional else ())
    assert list(graph_rules.faults(chosen)) == []
    cycle = graph_rules.step_cycle(chosen)
    assert cycle[0] == "schedule" and [name for name in cycle if name in graph_rules.REQUIRED] == [
        "schedule",
        "execute",
        "sample",
    ]


@settings(max_examples=50)
@given(graphs())
def test_nodes_put_between_and_taken_out_again_leave_no_trace(graph: Graph) -> None:
    for source, target in data_pairs(graph):
        again = graph.between(source, target, Node("passing", USE, 1)).without("passing")
        assert again.names == graph.names
        strip = [[(*link[:4],) for link in each.links] for each in (again, graph)]
        assert sorted(strip[0], key=str) == sorted(strip[1], key=str)


def first_fault(graph: Graph) -> str:
    return next(graph_rules.faults(graph), "")


@settings(max_examples=50)
@given(graphs(), st.data())
def test_a_node_that_is_needed_is_missed(graph: Graph, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(graph_rules.REQUIRED))
    assert first_fault(graph.without(name)).startswith(f"it has no node {name};")


@settings(max_examples=50)
@given(graphs(), st.data())
def test_a_node_that_nobody_feeds_is_named(graph: Graph, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(graph.names[1:]))
    kept: Any = [link for link in graph.links if link.target != name or link.lane is Lane.CONTROL]
    fault = first_fault(graph._replace(links=tuple(kept)))
    is_divided = any(link.target == name and link.carries is GenerateRequest for link in graph.links)
    assert name in fault or (is_divided and "exactly one must be without `when`" in fault)


@settings(max_examples=50)
@given(graphs(), st.data())
def test_a_link_that_ends_nowhere_leads_backwards_or_is_doubled_is_named(
    graph: Graph, data: st.DataObject
) -> None:
    link = data.draw(st.sampled_from(graph.links))
    shown = f"{link.source} -> {link.target} ({link.carries.__name__})"
    assert shown in first_fault(graph.with_links(link))
    lost = link._replace(target="nowhere")
    assert "nowhere" in first_fault(graph.with_links(lost))
    if link.lane is Lane.DATA:
        back = Link(link.target, link.source, type("Back", (), {}))
        assert f"{link.target} -> {link.source} (Back) leads backwards" in first_fault(graph.with_links(back))
