"""Graphs made of WHOLE: what each edit changes, and that it leaves the graph that it was made of alone."""

import pytest

from pipeline.messages import Cancel, GenerateRequest, TextBatch, TokenCall
from pipeline.topology import WHOLE, Graph, Lane, Link, Node, When

RULES = Node("rules", "my_lab:Rules", 4)


def ways(graph: Graph, carries: type) -> list[tuple[str, str]]:
    return [(link.source, link.target) for link in graph.links if link.carries is carries]


def test_a_node_stands_after_the_one_that_is_named() -> None:
    graph = WHOLE.with_node(RULES, after="tokenize")
    place = graph.names.index("tokenize")
    assert graph.names[place + 1] == "rules" and graph.links == WHOLE.links
    assert "rules" not in WHOLE.names


def test_between_sends_all_data_through_the_new_node() -> None:
    graph = WHOLE.between("filter", "stream", RULES)
    assert ways(graph, TextBatch) == [("detokenize", "filter"), ("filter", "rules"), ("rules", "stream")]
    assert ways(graph, Cancel) == ways(WHOLE, Cancel)
    assert graph.names.index("filter") < graph.names.index("rules") < graph.names.index("stream")


def test_between_takes_every_type_of_data_along() -> None:
    plain = WHOLE.chosen(()).between("ingress", "tokenize", RULES)
    for carries in (GenerateRequest, TokenCall):
        assert ways(plain, carries) == [("ingress", "rules"), ("rules", "tokenize")]


def test_a_condition_holds_for_the_way_to_the_new_node() -> None:
    when = When("terms.priority", at_least=1)
    graph = Graph(WHOLE.nodes, (Link("ingress", "tokenize", GenerateRequest, when=when),))
    assert graph.between("ingress", "tokenize", RULES).links == (
        Link("ingress", "rules", GenerateRequest, when=when),
        Link("rules", "tokenize", GenerateRequest),
    )


def test_without_undoes_between() -> None:
    graph = WHOLE.between("filter", "stream", RULES).with_links(
        Link("rules", "schedule", Cancel, Lane.CONTROL)
    )
    assert graph.without("rules").names == WHOLE.names
    assert set(graph.without("rules").links) == set(WHOLE.links)


def test_what_a_node_would_not_have_sent_on_goes_with_it() -> None:
    graph = WHOLE.with_node(RULES, after="ingress").with_links(Link("ingress", "rules", Cancel, Lane.CONTROL))
    assert graph.without("rules") == WHOLE


def test_optional_nodes_are_there_where_they_are_chosen() -> None:
    optional = RULES._replace(is_optional=True)
    graph = WHOLE.between("filter", "stream", optional)
    assert ways(graph.chosen(()), TextBatch) == [("detokenize", "stream")]
    assert ways(graph.chosen(("rules",)), TextBatch) == [("detokenize", "rules"), ("rules", "stream")]
    assert ways(graph.chosen(("filter",)), TextBatch) == [("detokenize", "filter"), ("filter", "stream")]


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="there is no node 'tokenise'; there are ingress, "):
        WHOLE.with_node(RULES, after="tokenise")
    with pytest.raises(ValueError, match="there is no node 'rules'"):
        WHOLE.without("rules")
    with pytest.raises(ValueError, match="no data link leads from stream to schedule"):
        WHOLE.between("stream", "schedule", RULES)
